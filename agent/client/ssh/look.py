"""How all processes of a host are, by one command; and what that means for each. Pure but for the script's text.

The script goes through the records of the store and asks the service manager about the unit of each.
"""

from __future__ import annotations

from dataclasses import dataclass

from agent.client.ssh.layout import LAUNCH, UNIT_PREFIX, Record, read_record

# $1: the store. $2: systemd, or launchd. $3: `user` for the user's own manager.
SCRIPT = f"""cd "$1/processes" 2>/dev/null || exit 0
[ "$3" != user ] || {{ XDG_RUNTIME_DIR="/run/user/$(id -u)"; export XDG_RUNTIME_DIR; }}
show() {{ if [ -r "$text" ]; then cat "$text"; else sudo -n cat "$text" 2>/dev/null; fi; }}
for file in {UNIT_PREFIX}*.json; do
  [ -f "$file" ] || continue
  unit=${{file%.json}} pid='' launch=''
  echo "process $unit"
  # Many shells' echo reads backslashes, of which JSON has its own.
  printf 'record %s\\n' "$(tr -d '\\n' <"$file")"
  [ ! -f "$unit.proved" ] || echo "proved $(cat "$unit.proved")"
  if [ "$2" = systemd ]; then
    folder=/etc/systemd/system
    [ "$3" != user ] || folder="$HOME/.config/systemd/user"
    text="$folder/$unit.service"
    [ ! -f "$text" ] || echo "unit $(show | cksum)"
    [ ! -f "$text" ] || echo "installed $(show | sed -n 's/^Environment={LAUNCH}=//p')"
    said=$(systemctl $([ "$3" != user ] || echo --user) show "$unit.service" \
      --property=ActiveState,SubState,MainPID,Result,NRestarts 2>&1) || said=''
    echo "$said"
    pid=$(echo "$said" | sed -n 's/^MainPID=//p')
    [ -z "$pid" ] || [ "$pid" = 0 ] || [ ! -r "/proc/$pid/environ" ] ||
      launch=$(tr '\\0' '\\n' <"/proc/$pid/environ" | sed -n 's/^{LAUNCH}=//p')
  else
    text="/Library/LaunchDaemons/dev.herdsman.${{unit#herdsman-}}.plist"
    [ ! -f "$text" ] || echo "unit $(show | cksum)"
    [ ! -f "$text" ] || echo "installed $(show | sed -n '/<key>{LAUNCH}</{{n;s/.*<string>\\(.*\\)<.*/\1/p;}}')"
    said=$(launchctl print "system/dev.herdsman.${{unit#herdsman-}}" 2>/dev/null) || said=''
    pid=$(echo "$said" | sed -n 's/^\\tpid = //p' | head -n 1)
    launch=$(echo "$said" | sed -n 's/^\\t\\t{LAUNCH} => //p' | head -n 1)
    state=$(echo "$said" | sed -n 's/^\\tstate = //p' | head -n 1)
    runs=$(echo "$said" | sed -n 's/^\\truns = //p' | head -n 1)
    if [ "$state" = running ]; then echo ActiveState=active
    elif [ -n "$said" ]; then echo ActiveState=activating; else echo ActiveState=inactive; fi
    echo "MainPID=${{pid:-0}}"
    echo "NRestarts=$((${{runs:-1}} - 1))"
  fi
  [ -z "$launch" ] || echo "launch $launch"
  [ -z "$pid" ] || [ "$pid" = 0 ] || echo "started $(ps -o lstart= -p "$pid" 2>/dev/null)"
  log="$1/logs/$unit.log"
  [ ! -f "$log" ] || [ "$(wc -c <"$log")" -lt 67108864 ] ||
    {{ tail -c 1048576 "$log" >"$log.1" && : >"$log"; }} 2>/dev/null
done
exit 0
"""


@dataclass(frozen=True)
class Seen:
    """One process as the host shows it."""

    record: Record
    active: str = "inactive"
    """systemd's word: active, activating, deactivating, failed, inactive."""
    pid: int = 0
    restarts: int = 0
    result: str = ""
    launch: str = ""
    """The launch hash that the running process was started by."""
    installed: str = ""
    """The one in the unit's file."""
    unit: str = ""
    """Checksum of the unit's file; empty: there is none."""
    started: str = ""
    proved: str = ""
    """The start that has answered a completion."""

    @property
    def runs(self) -> bool:
        return self.active == "active" and self.pid > 0

    @property
    def start(self) -> str:
        """Tells this start of the process from any other."""
        return f"{self.pid} {self.launch} {self.started}"


def read_processes(text: str) -> tuple[dict[str, Seen], tuple[str, ...]]:
    """Read what the script said: processes by key, and units whose record cannot be read."""
    found: dict[str, Seen] = {}
    unread: list[str] = []
    for first, lines in _blocks(text):
        said: dict[str, str] = {}
        for line in lines:
            name, separator, value = line.partition(" ")
            if separator and name in ("record", "proved", "launch", "started", "installed", "unit"):
                said[name] = value.strip()
            elif "=" in line:
                name, _, value = line.partition("=")
                said[name] = value.strip()
        record = read_record(said.get("record", ""))
        if record is None:
            unread.append(first)
            continue
        found[record.key] = Seen(
            record=record,
            active=said.get("ActiveState", "inactive"),
            pid=_int(said.get("MainPID", "")),
            restarts=_int(said.get("NRestarts", "")),
            result=said.get("Result", ""),
            launch=said.get("launch", ""),
            installed=said.get("installed", ""),
            unit=said.get("unit", ""),
            started=" ".join(said.get("started", "").split()),
            proved=said.get("proved", ""),
        )
    return found, tuple(unread)


def _blocks(text: str) -> list[tuple[str, list[str]]]:
    blocks: list[tuple[str, list[str]]] = []
    for line in text.splitlines():
        # A record is one line of its own, so that nothing in it can look like the start of another.
        if line.startswith(f"process {UNIT_PREFIX}"):
            blocks.append((line.partition(" ")[2].strip(), []))
        elif blocks:
            blocks[-1][1].append(line)
    return blocks


def _int(text: str) -> int:
    return int(text) if text.isdigit() else 0
