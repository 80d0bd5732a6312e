# Prints how far the file $1 is on the host, in lines `name value`; `agent.client.ssh.fetch` reads them.
say() { printf '%s %s\n' "$1" "$2"; }
job=$(dirname "$1")/.$(basename "$1").fetch
[ -f "$1" ] && say there "$(wc -c <"$1")"
[ -f "$job/sum" ] && say sum "$(cat "$job/sum")"
if [ -f "$job/lock" ]; then
  if command -v lockf >/dev/null; then
    lockf -k -s -t 0 "$job/lock" true
    [ $? != 75 ] || echo running
  else
    (flock -s -n 9 || echo running) 9<"$job/lock"
  fi
fi
# Scripts that an earlier version started, with `herdsman-fetch` in their names, hold no lock and write `pid`.
[ -f "$job/pid" ] && case $(ps -p "$(cat "$job/pid")" -o args= 2>/dev/null) in *herdsman-fetch*) echo running ;; esac
[ -f "$job/part" ] && say part "$(wc -c <"$job/part")"
[ -f "$job/total" ] && say total "$(cat "$job/total")"
[ -f "$job/failed" ] && say failed "$(cat "$job/failed")"
exit 0
