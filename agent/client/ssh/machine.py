"""A machine over SSH, for the steps of `agent.steps`: its commands and files, POSIX tools only, Linux and macOS alike.

A connection that breaks raises HostUnreachable past the steps: nobody knows then what was done, and the next run looks.
"""

from __future__ import annotations

from collections.abc import Sequence

from agent.client.ssh.connection import COMMAND_TIMEOUT_S, SshConnection, redacted
from agent.client.ssh.errors import CommandRefused, SudoRefused
from agent.steps.machine import CommandFailed, Facts, FileStat, Finished, MachineError, NotPermitted

_NOTHING_THERE = 44
"""Exit status with which a script says that there is no such path."""
_FACTS = 'printf "%s\\n" "$(uname -s)" "$(id -u)" "$(id -un)" "$HOME"'
_READ = f'[ -e "$1" ] || exit {_NOTHING_THERE}; cat -- "$1"'
_STAT = f"""[ -e "$1" ] || exit {_NOTHING_THERE}
if [ -f "$1" ]; then k=file; elif [ -d "$1" ]; then k=directory; else k=other; fi
stat -L -c "$k %a %U %s" "$1" 2>/dev/null || stat -L -f "$k %Lp %Su %z" "$1" """
# A path below a user's directory is that user's: a link planted there would lead what root does elsewhere. So root goes
# from directory to directory, as `agent.steps.directories` does, and changes only the one that it stands in.
_ENTER = r"""refuse() { echo "$1 is a symbolic link that another user than root can point elsewhere" >&2; exit 1; }
others() {
  set -- $(LC_ALL=C ls -ldn .)
  case $3,$1 in 0,?????w* | 0,????????w*) return 0 ;; 0,*) return 1 ;; esac
}
roots() { set -- $(LC_ALL=C ls -ldn "./$1") && [ "$3" = 0 ]; }
enter() {
  if [ "$(id -u)" != 0 ]; then
    [ "$2" != make ] || [ -d "$1" ] || (umask 022 && mkdir -p -- "$1") || return
    cd -- "$1"
    return
  fi
  cd / && rest=${1#/} links=0 || return
  while [ -n "$rest" ]; do
    name=${rest%%/*}
    case $rest in */*) rest=${rest#*/} ;; *) rest='' ;; esac
    case $name in '' | .) continue ;; esac
    before=$(pwd -P)
    if [ -L "./$name" ]; then
      links=$((links + 1))
      [ "$links" -le 40 ] && roots "$name" && ! others || refuse "${before%/}/$name"
      to=$(readlink "./$name")
      case $to in /*) cd / ;; esac
      rest=${to#/}${rest:+/$rest}
      continue
    fi
    [ "$2" != make ] || [ -e "./$name" ] || (umask 022 && mkdir "./$name") || return
    cd -P "./$name" || return
    # It may have become a link since it was looked at.
    [ "$name" = .. ] || [ "$(pwd -P)" = "${before%/}/$name" ] || refuse "${before%/}/$name"
  done
}
"""
# The draft is made readable by nobody else, filled from stdin, and only then given its owner and mode. Where others may
# put something else in its place meanwhile, root makes it with its mode and gives it to nobody.
_WRITE = (
    _ENTER
    + r"""enter "$(dirname "$1")" '' || exit 1
name=$(basename "$1"); draft=./.$name.herdsman-new
place() { mv -fT "$draft" "./$name" 2>/dev/null || mv -fh "$draft" "./$name" 2>/dev/null || mv -f "$draft" "./$name"; }
rm -f "$draft"; set -C
if [ "$(id -u)" = 0 ] && others; then
  plain=yes
  case $2 in *[1357]*) plain='' ;; esac
  if [ -n "$3" ] || [ -z "$plain" ]; then
    echo "$(pwd -P) is a directory that others may change; root makes no file there for another user or to be run" >&2
    exit 1
  fi
  umask "$4" && cat >"$draft" && place && exit
else
  umask 077
  cat >"$draft" && { [ -z "$3" ] || chown "$3" "$draft"; } && chmod "$2" "$draft" && place && exit
fi
rm -f "$draft"; exit 1"""
)
_DIRECTORY = _ENTER + """enter "$1" make && { [ -z "$3" ] || chown "$3" .; } && chmod "$2" ."""
_REMOVE = (
    _ENTER
    + """[ -d "$(dirname "$1")" ] || exit 0
enter "$(dirname "$1")" '' && rm -f -- "./$(basename "$1")\""""
)


class SshMachine:
    """A machine behind a connection (`agent.steps.machine.Machine`)."""

    def __init__(self, connection: SshConnection) -> None:
        self._connection = connection
        self._facts: Facts | None = None

    @property
    def facts(self) -> Facts:
        if self._facts is None:
            lines = self._connection.shell(_FACTS, what="asking who we are").splitlines()
            if len(lines) != 4 or not lines[1].isdigit():
                raise MachineError(f"{self._connection.target.server.name} did not say who we are there")
            os = "darwin" if lines[0] == "Darwin" else "linux"
            self._facts = Facts(os=os, uid=int(lines[1]), user=lines[2], home=lines[3])  # type: ignore[arg-type]
        return self._facts

    @property
    def may_be_root(self) -> bool:
        """Whether root's rights are there to be taken."""
        return self.facts.is_root or self._connection.target.sudo

    def run(
        self,
        argv: Sequence[str],
        *,
        input: bytes | None = None,  # noqa: A002 - the name that subprocess has for it
        sudo: bool = False,
        timeout_s: float = COMMAND_TIMEOUT_S,
    ) -> Finished:
        self._allow(sudo, f"run {redacted(argv)}")
        try:
            # Over SSH there is no session bus in the environment, and `systemctl --user` needs one.
            bus = 'XDG_RUNTIME_DIR="${XDG_RUNTIME_DIR:-/run/user/$(id -u)}"; export XDG_RUNTIME_DIR; '
            said = self._connection.run(
                ["sh", "-c", bus + 'exec "$@"', "sh", *argv],
                what=redacted(argv),
                stdin=input or b"",
                sudo=sudo and not self.facts.is_root,
                timeout_s=timeout_s,
            )
        except (CommandRefused, SudoRefused) as error:
            raise _translated(error) from error
        return Finished(said.code, said.stdout, said.stderr)

    def read(self, path: str, *, sudo: bool = False) -> bytes | None:
        return self._script(_READ, f"read {path}", path, sudo=sudo)

    def stat(self, path: str, *, sudo: bool = False) -> FileStat | None:
        said = self._script(_STAT, f"look at {path}", path, sudo=sudo)
        if said is None:
            return None
        kind, mode, owner, size = said.decode().split()[:4]
        return FileStat(kind=kind, mode=int(mode, 8), owner=owner, size=int(size))  # type: ignore[arg-type]

    def write(self, path: str, content: bytes, *, mode: int, owner: str | None = None, sudo: bool = False) -> None:
        arguments = (path, f"{mode:o}", owner or "", f"{0o777 & ~mode:o}")
        self._script(_WRITE, f"write {path}", *arguments, sudo=sudo, stdin=content)

    def remove(self, path: str, *, sudo: bool = False) -> None:
        self._script(_REMOVE, f"remove {path}", path, sudo=sudo)

    def make_directory(self, path: str, *, mode: int, owner: str | None = None, sudo: bool = False) -> None:
        self._script(_DIRECTORY, f"make {path}", path, f"{mode:o}", owner or "", sudo=sudo)

    def _script(self, script: str, verb: str, *arguments: str, sudo: bool, stdin: bytes = b"") -> bytes | None:
        self._allow(sudo, verb)
        raised = sudo and not self.facts.is_root
        try:
            said = self._connection.run(["sh", "-c", script, "sh", *arguments], what=verb, stdin=stdin, sudo=raised)
        except (CommandRefused, SudoRefused) as error:
            raise _translated(error) from error
        finished = Finished(said.code, said.stdout, said.stderr)
        if finished.code == _NOTHING_THERE:
            return None
        if finished.code != 0:
            words = finished.complaint or f"it ended with {finished.code}"
            if "ermission denied" in words or "not permitted" in words:
                raise NotPermitted(f"user `{self.facts.user}` may not {verb}: {words}")
            raise MachineError(f"could not {verb}: {words}")
        return finished.stdout

    def _allow(self, sudo: bool, what: str) -> None:
        if sudo and not self.facts.is_root and not self._connection.target.sudo:
            raise NotPermitted(f"user `{self.facts.user}` may not {what}: that takes root", hint="set `sudo: true`")


def _translated(error: CommandRefused | SudoRefused) -> MachineError:
    return NotPermitted(error.message) if isinstance(error, SudoRefused) else CommandFailed(error.message)
