# Starts the script on stdin, which fetches the file $1, cut loose from the SSH connection.
for tool in curl awk; do command -v "$tool" >/dev/null || { printf '%s\n' "there is no $tool" >&2; exit 1; }; done
command -v lockf >/dev/null || command -v flock >/dev/null || { echo "there is neither flock nor lockf" >&2; exit 1; }
job=$(dirname "$1")/.$(basename "$1").fetch
mkdir -p "$(dirname "$1")" && umask 077 && mkdir -p "$job" && chmod 700 "$job" || exit 1
rm -f "$job/failed"
s=$(mktemp "$job/run.XXXXXX") && cat >"$s" || exit 1
# shellcheck disable=SC2016  # the inner shell expands it
run='sh "$0"; rm -f "$0"'
if command -v setsid >/dev/null; then
  setsid sh -c "$run" "$s" >/dev/null 2>&1 </dev/null &
else
  nohup sh -c "$run" "$s" >/dev/null 2>&1 </dev/null &
fi
