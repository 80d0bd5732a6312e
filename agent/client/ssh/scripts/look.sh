# Prints how each process of a store is, in lines `name value`; `agent.client.ssh.observed` reads them.
# $1: the store. $2: `systemd` or `launchd`. $3: `user` for the user's own manager. $4: the directory of the units' files.
command -v base64 >/dev/null || { echo "there is no base64" >&2; exit 1; }
cd "$1/processes" 2>/dev/null || exit 0
[ "$3" != user ] || { XDG_RUNTIME_DIR="/run/user/$(id -u)"; export XDG_RUNTIME_DIR; }
show() { if [ -r "$text" ]; then cat "$text"; else sudo -n cat "$text" 2>/dev/null; fi; }
say() { printf '%s %s\n' "$1" "$2"; }
field() { printf '%s\n' "$said" | sed -n "s/^$1//p" | head -n 1; }
boot=$(sysctl -n kern.bootsessionuuid 2>/dev/null || cat /proc/sys/kernel/random/boot_id 2>/dev/null)
for file in herdsman-process-*.json; do
  [ -f "$file" ] || continue
  unit=${file%.json} pid='' launch='' runs=''
  say process "$unit"
  # Arguments may have any character: a shell's echo, or whatever splits lines, would change them.
  say record64 "$(base64 <"$file" | tr -d '\n')"
  [ ! -f "$unit.proved" ] || say proved "$(cat "$unit.proved")"
  if [ "$2" = systemd ]; then
    text="$4/$unit.service"
    [ ! -f "$text" ] || say installed "$(show | sed -n 's/^Environment=HERDSMAN_LAUNCH=//p')"
    manager=--system
    [ "$3" != user ] || manager=--user
    said=$(systemctl "$manager" show "$unit.service" \
      --property=ActiveState,SubState,MainPID,Result,NRestarts 2>&1) || said=''
    printf '%s\n' "$said"
    pid=$(field MainPID=)
    [ -z "$pid" ] || [ "$pid" = 0 ] || [ ! -r "/proc/$pid/environ" ] ||
      launch=$(tr '\0' '\n' <"/proc/$pid/environ" | sed -n 's/^HERDSMAN_LAUNCH=//p')
  else
    tab=$(printf '\t')
    job=dev.herdsman.${unit#herdsman-}
    text="$4/$job.plist"
    [ ! -f "$text" ] ||
      say installed "$(show | sed -n '/<key>HERDSMAN_LAUNCH</{n;s/.*<string>\(.*\)<.*/\1/p;}')"
    said=$(launchctl print "system/$job" 2>/dev/null) || said=''
    pid=$(field "${tab}pid = ")
    launch=$(field "$tab${tab}HERDSMAN_LAUNCH => ")
    state=$(field "${tab}state = ")
    runs=$(field "${tab}runs = ")
    if [ "$state" = running ]; then echo ActiveState=active
    elif [ -n "$said" ]; then echo ActiveState=activating; else echo ActiveState=inactive; fi
    echo "MainPID=${pid:-0}"
    echo "NRestarts=$((${runs:-1} - 1))"
    # `78: EX_CONFIG` is what launchd says of a job that it cannot start.
    case $(field "${tab}last exit code = ") in
      '' | '(never exited)' | 0 | 0:*) ;;
      *) say Result= "exit code $(field "${tab}last exit code = ")" ;;
    esac
  fi
  [ ! -f "$text" ] || say unit "$(show | cksum)"
  [ -z "$launch" ] || say launch "$launch"
  if [ -n "$pid" ] && [ "$pid" != 0 ]; then
    # The wall clock may be set while a process runs; ticks since boot, and launchd's count of starts, stay.
    if [ -r "/proc/$pid/stat" ]; then
      start=$(sed 's/.*) //' "/proc/$pid/stat" | cut -d' ' -f20)
    else
      start=$runs
    fi
    [ -z "$start" ] || [ -z "$boot" ] || say start "$boot/$start"
    say started "$(ps -o lstart= -p "$pid" 2>/dev/null)"
  fi
  log="$1/logs/$unit.log"
  # systemd made the log as root if an earlier version of Herdsman started the process; it is replaced at the next start.
  [ ! -f "$log" ] || [ ! -r "$log" ] || [ ! -w "$log" ] || [ "$(wc -c <"$log")" -lt 67108864 ] ||
    { tail -c 1048576 "$log" >"$log.1" && : >"$log"; } 2>/dev/null
done
exit 0
