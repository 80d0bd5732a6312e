"""Reads values of secret variables that the owner of a host over SSH put there. Called by `processes`.

A file counts under the conditions that an agent sets on its own machine (`agent.server.processes.secret_values`).
"""

from __future__ import annotations

from agent.client.ssh.machine import SshMachine
from agent.server.processes.secret_values import MAX_BYTES, SecretUnavailable

_NOTHING_THERE = 44
_REFUSED = 45
# $1: directory, $2 to $4: namespace, Secret and key, $5: uid of the connection's user. `ls -ldn` is POSIX, stat is not.
_SCRIPT = f"""path=$1
look() {{ set -- $(LC_ALL=C ls -ldn -- "$path") && mode=$1 links=$2 owner=$3; }}
refuse() {{ echo "$path $1" >&2; exit {_REFUSED}; }}
owned() {{
  [ "$owner" = 0 ] || [ "$owner" = "$1" ] || refuse "belongs neither to root nor to the user of the connection"
}}
for part in "$2" "$3" "$4"; do
  [ -e "$path" ] || [ -L "$path" ] || exit {_NOTHING_THERE}
  look || exit 1
  case $mode in
    *+) refuse "has an access control list; remove it" ;;
    d????-??-*) owned "$5" ;;
    d*) refuse "may be written by others; chmod go-w" ;;
    *) refuse "is a link, or no directory" ;;
  esac
  path=$path/$part
done
[ -e "$path" ] || [ -L "$path" ] || exit {_NOTHING_THERE}
look || exit 1
case $mode in
  -???------|-???------[.@]) owned "$5" ;;
  -*) refuse "may be read by others; chmod 600" ;;
  *) refuse "is a link, or no plain file" ;;
esac
[ "$links" = 1 ] || refuse "has a second name by a hard link"
head -c {MAX_BYTES + 3} "$path" """


class SecretFiles:
    """The directory with the values, on one host."""

    def __init__(self, machine: SshMachine, folder: str) -> None:
        self._machine = machine
        self._folder = folder

    def read(self, parts: tuple[str, str, str]) -> bytes | None:
        """Read one value; None where the host has no file for it. Raises SecretUnavailable, HostError, MachineError."""
        facts = self._machine.facts
        folder = self._folder
        if folder == "~" or folder.startswith("~/"):
            folder = facts.home + folder[1:]
        if not folder.startswith("/"):
            raise SecretUnavailable(f"spec.ssh.secrets: `{folder}` is no absolute path")
        argv = ["sh", "-c", _SCRIPT, "sh", folder, *parts, str(facts.uid)]
        ended = self._machine.run(argv, sudo=self._machine.may_be_root)
        if ended.code == _NOTHING_THERE:
            return None
        if ended.code != 0:
            raise SecretUnavailable(ended.complaint or f"{folder}/{'/'.join(parts)} cannot be read")
        return ended.stdout
