"""What a step needs of a machine: commands, files and a few facts. Local or over SSH.

`agent.steps.local` is this machine, `agent.client.ssh.machine` one over SSH. Every failure is a MachineError.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal, Protocol

COMMAND_TIMEOUT_S = 60.0


class MachineError(Exception):
    """A machine did not do what a step asked for. `hint` says what helps, where something does."""

    def __init__(self, message: str, *, hint: str = "") -> None:
        super().__init__(message)
        self.message = message
        self.hint = hint


class CommandFailed(MachineError):
    """A command ended with a code that means failure, or could not be run at all."""


class NotPermitted(MachineError):
    """The user on that machine may not do this."""


@dataclass(frozen=True)
class Finished:
    """A command that has ended. 127: there is no such command; 126: it may not be run."""

    code: int
    stdout: bytes = b""
    stderr: bytes = b""

    @property
    def text(self) -> str:
        """Its standard output, without the line end."""
        return self.stdout.decode("utf-8", "replace").rstrip("\n")

    @property
    def complaint(self) -> str:
        """The last words of a command that failed: its standard error, else its output, in one line of limited size."""
        said = (self.stderr.strip() or self.stdout.strip()).decode("utf-8", "replace")
        return " ".join(said.split())[-400:]


@dataclass(frozen=True)
class Facts:
    """What a machine is, asked once."""

    os: Literal["linux", "darwin"]
    uid: int
    user: str
    home: str

    @property
    def is_root(self) -> bool:
        return self.uid == 0


@dataclass(frozen=True)
class FileStat:
    """What stands in the directory about a path; a link counts as what it leads to."""

    kind: Literal["file", "directory", "other"]
    mode: int
    """The permission bits."""
    owner: str
    """Name of the user, or the number of one without a name."""
    size: int


class Machine(Protocol):
    """One machine. `sudo` asks for root's rights, which a machine whose user is root has anyway.

    Everything raises MachineError when it fails; NotPermitted where rights are what is lacking.
    """

    @property
    def facts(self) -> Facts: ...

    def run(
        self,
        argv: Sequence[str],
        *,
        input: bytes | None = None,  # noqa: A002 - the name that subprocess has for it
        sudo: bool = False,
        timeout_s: float = COMMAND_TIMEOUT_S,
    ) -> Finished:
        """Run a command without a shell, to its end. Its exit code is the caller's to judge."""

    def read(self, path: str, *, sudo: bool = False) -> bytes | None:
        """Give the content of a file; None when there is none."""

    def stat(self, path: str, *, sudo: bool = False) -> FileStat | None:
        """Describe a path; None when nothing is there."""

    def write(self, path: str, content: bytes, *, mode: int, owner: str | None = None, sudo: bool = False) -> None:
        """Put a file there whole or not at all: a draft beside it, made durable, then renamed."""

    def remove(self, path: str, *, sudo: bool = False) -> None:
        """Remove a file; that there is none is no failure."""

    def make_directory(self, path: str, *, mode: int, owner: str | None = None, sudo: bool = False) -> None:
        """Make a directory, and those above it as the machine makes them; one that exists gets this mode and owner.

        Nothing in it changes.
        """


def checked(machine: Machine, argv: Sequence[str], *, sudo: bool = False, timeout_s: float = COMMAND_TIMEOUT_S) -> str:
    """Run a command that must end with 0 and give its output. Raises CommandFailed with its last words."""
    finished = machine.run(argv, sudo=sudo, timeout_s=timeout_s)
    if finished.code != 0:
        raise failure(argv, finished)
    return finished.text


def failure(argv: Sequence[str], finished: Finished) -> CommandFailed:
    """Make the error of a command that failed."""
    if finished.code == 127:
        return CommandFailed(f"`{argv[0]}` was not found", hint=f"install what brings `{argv[0]}`, or set PATH")
    said = finished.complaint or "it said nothing"
    return CommandFailed(f"`{' '.join(argv)}` ended with {finished.code}: {said}")
