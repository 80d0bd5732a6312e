"""A machine over SSH for the steps of `agent.steps`: commands and files on Linux and macOS, with POSIX tools only.

A connection that breaks raises HostUnreachable past the steps. The result of the step is then unknown, and the next run
checks it.
"""

from __future__ import annotations

from collections.abc import Sequence

from agent.client.ssh.connection import COMMAND_TIMEOUT_S, SshConnection, redacted
from agent.client.ssh.errors import CommandRefused, SudoRefused
from agent.client.ssh.scripts import script
from agent.steps.machine import CommandFailed, Facts, FileStat, Finished, MachineError, NotPermitted

_NOTHING_THERE = 44
"""Exit code of the scripts for a path that does not exist."""
_FACTS = 'printf "%s\\n" "$(uname -s)" "$(id -u)" "$(id -un)" "$HOME"'
_READ = f'[ -e "$1" ] || exit {_NOTHING_THERE}; cat -- "$1"'


class SshMachine:
    """A machine reached by a connection (`agent.steps.machine.Machine`)."""

    def __init__(self, connection: SshConnection) -> None:
        self._connection = connection
        self._facts: Facts | None = None

    @property
    def facts(self) -> Facts:
        if self._facts is None:
            lines = self._connection.shell(_FACTS, what="asking for the user").splitlines()
            if len(lines) != 4 or not lines[1].isdigit():
                raise MachineError(f"{self._connection.target.server.name} did not print the user of the connection")
            os = "darwin" if lines[0] == "Darwin" else "linux"
            self._facts = Facts(os=os, uid=int(lines[1]), user=lines[2], home=lines[3])  # type: ignore[arg-type]
        return self._facts

    @property
    def may_be_root(self) -> bool:
        """Whether commands can run as root."""
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
            # Over SSH the environment contains no session bus, which `systemctl --user` needs.
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
        said = self._script(script("stat"), f"look at {path}", path, sudo=sudo)
        if said is None:
            return None
        kind, mode, owner, size = said.decode().split()[:4]
        return FileStat(kind=kind, mode=int(mode, 8), owner=owner, size=int(size))  # type: ignore[arg-type]

    def write(self, path: str, content: bytes, *, mode: int, owner: str | None = None, sudo: bool = False) -> None:
        arguments = (path, f"{mode:o}", owner or "", f"{0o777 & ~mode:o}")
        self._script(script("enter", "write_file"), f"write {path}", *arguments, sudo=sudo, stdin=content)

    def remove(self, path: str, *, sudo: bool = False) -> None:
        self._script(script("enter", "remove_file"), f"remove {path}", path, sudo=sudo)

    def make_directory(self, path: str, *, mode: int, owner: str | None = None, sudo: bool = False) -> None:
        self._script(script("enter", "make_directory"), f"make {path}", path, f"{mode:o}", owner or "", sudo=sudo)

    def _script(self, text: str, verb: str, *arguments: str, sudo: bool, stdin: bytes = b"") -> bytes | None:
        self._allow(sudo, verb)
        raised = sudo and not self.facts.is_root
        try:
            said = self._connection.run(["sh", "-c", text, "sh", *arguments], what=verb, stdin=stdin, sudo=raised)
        except (CommandRefused, SudoRefused) as error:
            raise _translated(error) from error
        finished = Finished(said.code, said.stdout, said.stderr)
        if finished.code == _NOTHING_THERE:
            return None
        if finished.code != 0:
            words = finished.complaint or f"it exited with code {finished.code}"
            if "ermission denied" in words or "not permitted" in words:
                raise NotPermitted(f"user `{self.facts.user}` may not {verb}: {words}")
            raise MachineError(f"could not {verb}: {words}")
        return finished.stdout

    def _allow(self, sudo: bool, what: str) -> None:
        if sudo and not self.facts.is_root and not self._connection.target.sudo:
            raise NotPermitted(f"user `{self.facts.user}` may not {what}: only root may", hint="set `sudo: true`")


def _translated(error: CommandRefused | SudoRefused) -> MachineError:
    return NotPermitted(error.message) if isinstance(error, SudoRefused) else CommandFailed(error.message)
