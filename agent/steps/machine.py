"""The interface of a machine for steps: commands, files and a few facts.

`agent.steps.local` implements it for this machine, `agent.client.ssh.machine` over SSH. Every failure is a
MachineError.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal, Protocol

COMMAND_TIMEOUT_S = 60.0


class MachineError(Exception):
    """A machine did not do what a step requested. `hint` is the remedy, if there is one."""

    def __init__(self, message: str, *, hint: str = "") -> None:
        super().__init__(message)
        self.message = message
        self.hint = hint


class CommandFailed(MachineError):
    """A command ended with an exit code other than 0, or could not be run."""


class NotPermitted(MachineError):
    """The user on the machine does not have permission."""


@dataclass(frozen=True)
class Finished:
    """The result of a command. 127: it does not exist; 126: it may not be run."""

    code: int
    stdout: bytes = b""
    stderr: bytes = b""

    @property
    def text(self) -> str:
        """The standard output, without the line end."""
        return self.stdout.decode("utf-8", "replace").rstrip("\n")

    @property
    def complaint(self) -> str:
        """The end of the standard error, or else of the output, in one line of limited length."""
        said = (self.stderr.strip() or self.stdout.strip()).decode("utf-8", "replace")
        return " ".join(said.split())[-400:]


@dataclass(frozen=True)
class Facts:
    """The facts of a machine, read once."""

    os: Literal["linux", "darwin"]
    uid: int
    user: str
    home: str

    @property
    def is_root(self) -> bool:
        return self.uid == 0


@dataclass(frozen=True)
class FileStat:
    """Type, mode, owner and size of a path. Links are followed."""

    kind: Literal["file", "directory", "other"]
    mode: int
    """The permission bits."""
    owner: str
    """Name of the user, or the number of a user without a name."""
    size: int


class Machine(Protocol):
    """One machine. `sudo` requests root, which has no effect if the user is root.

    All methods raise MachineError on failure, and NotPermitted if permissions are missing.
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
        """Run a command without a shell, to its end. The caller checks the exit code."""

    def read(self, path: str, *, sudo: bool = False) -> bytes | None:
        """Return the content of a file, or None if it does not exist."""

    def stat(self, path: str, *, sudo: bool = False) -> FileStat | None:
        """Describe a path. Returns None if it does not exist."""

    def write(self, path: str, content: bytes, *, mode: int, owner: str | None = None, sudo: bool = False) -> None:
        """Write a file atomically: write and sync a draft beside it, then rename the draft."""

    def remove(self, path: str, *, sudo: bool = False) -> None:
        """Remove a file. No error if it does not exist."""

    def make_directory(self, path: str, *, mode: int, owner: str | None = None, sudo: bool = False) -> None:
        """Create a directory and its parents, or set mode and owner of an existing one. Its content does not change."""


def checked(machine: Machine, argv: Sequence[str], *, sudo: bool = False, timeout_s: float = COMMAND_TIMEOUT_S) -> str:
    """Run a command and return its output.

    Raises CommandFailed, with the end of its output, if the exit code is not 0.
    """
    finished = machine.run(argv, sudo=sudo, timeout_s=timeout_s)
    if finished.code != 0:
        raise failure(argv, finished)
    return finished.text


def failure(argv: Sequence[str], finished: Finished) -> CommandFailed:
    """Return the error for a failed command."""
    if finished.code == 127:
        return CommandFailed(f"`{argv[0]}` was not found", hint=f"install `{argv[0]}`, or set PATH")
    said = finished.complaint or "it said nothing"
    return CommandFailed(f"`{' '.join(argv)}` ended with {finished.code}: {said}")
