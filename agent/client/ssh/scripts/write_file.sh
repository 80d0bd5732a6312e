# Writes stdin to the file $1 with the mode $2 and, unless $3 is empty, the owner $3. $4: the umask that leaves that mode.
# Follows `enter.sh`. The draft is made readable by nobody else, filled, and only then given its owner and mode. Where
# others may put something else in its place meanwhile, root makes it with its mode and gives it to nobody.
enter "$(dirname "$1")" '' || exit 1
name=$(basename "$1")
draft=./.$name.herdsman-new
# GNU's mv has -T, macOS' has -h.
place() { mv -fT "$draft" "./$name" 2>/dev/null || mv -fh "$draft" "./$name" 2>/dev/null || mv -f "$draft" "./$name"; }
rm -f "$draft"
set -C
if [ "$(id -u)" = 0 ] && others; then
  plain=yes
  case $2 in *[1357]*) plain='' ;; esac
  if [ -n "$3" ] || [ -z "$plain" ]; then
    printf '%s\n' "$(pwd -P) is a directory that others may change; root makes no file there for another user or to be run" >&2
    exit 1
  fi
  umask "$4" && cat >"$draft" && place && exit
else
  umask 077
  cat >"$draft" && { [ -z "$3" ] || chown "$3" "$draft"; } && chmod "$2" "$draft" && place && exit
fi
rm -f "$draft"
exit 1
