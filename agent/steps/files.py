"""Steps for files and directories."""

from __future__ import annotations

from dataclasses import dataclass, field

from agent.steps.machine import Machine, MachineError
from agent.steps.step import Change, difference


@dataclass(frozen=True)
class File:
    """A file with this content, mode and owner. Owner None: the user that writes it."""

    path: str
    content: bytes = field(repr=False)
    mode: int = 0o644
    owner: str | None = None
    sudo: bool = False
    secret: bool = False
    """Never show the content."""
    what: str = "file"

    @property
    def title(self) -> str:
        return f"{self.what} {self.path}"

    def compare(self, machine: Machine) -> Change | None:
        there = machine.stat(self.path, sudo=self.sudo)
        if there is None:
            return Change("makes it", self._diff(None))
        if there.kind != "file":
            raise MachineError(f"{self.path} exists and is not a file", hint="move it away")
        before = machine.read(self.path, sudo=self.sudo)
        if before != self.content:
            return Change("changes its content", self._diff(before))
        if there.mode != self.mode:
            return Change(f"changes its mode from {there.mode:o} to {self.mode:o}")
        if self.owner is not None and there.owner != self.owner:
            return Change(f"changes its owner from `{there.owner}` to `{self.owner}`")
        return None

    def apply(self, machine: Machine) -> None:
        machine.write(self.path, self.content, mode=self.mode, owner=self.owner, sudo=self.sudo)

    def _diff(self, before: bytes | None) -> str:
        return "" if self.secret else difference(self.path, before, self.content)


@dataclass(frozen=True)
class NoFile:
    """No file at this path."""

    path: str
    sudo: bool = False
    what: str = "no file"

    @property
    def title(self) -> str:
        return f"{self.what} {self.path}"

    def compare(self, machine: Machine) -> Change | None:
        return None if machine.stat(self.path, sudo=self.sudo) is None else Change("removes it")

    def apply(self, machine: Machine) -> None:
        machine.remove(self.path, sudo=self.sudo)


@dataclass(frozen=True)
class Directory:
    """A directory. The step does not touch its content."""

    path: str
    mode: int | None = 0o755
    """None: 0755 for a new directory; an existing one keeps its mode."""
    owner: str | None = None
    sudo: bool = False
    what: str = "directory"

    @property
    def title(self) -> str:
        return f"{self.what} {self.path}"

    def compare(self, machine: Machine) -> Change | None:
        there = machine.stat(self.path, sudo=self.sudo)
        if there is None:
            return Change("makes it")
        if there.kind != "directory":
            raise MachineError(f"{self.path} exists and is not a directory", hint="move it away")
        if self.mode is not None and there.mode != self.mode:
            return Change(f"changes its mode from {there.mode:o} to {self.mode:o}")
        if self.owner is not None and there.owner != self.owner:
            return Change(f"changes its owner from `{there.owner}` to `{self.owner}`")
        return None

    def apply(self, machine: Machine) -> None:
        machine.make_directory(
            self.path, mode=0o755 if self.mode is None else self.mode, owner=self.owner, sudo=self.sudo
        )
