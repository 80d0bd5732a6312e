"""The operating system user that runs the engines if the agent may change users.

Chosen by `automation.cli.agent_run`, used by `launching`. The agent opens an engine's log before it changes the user,
so the engine needs no access to the folder of the logs or to the agent's tokens.
"""

from __future__ import annotations

import os
import pwd
import sys
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

USUAL = "herdsman-engine"
"""An agent that runs as root on Linux uses the user of this name, if it exists."""


class EngineUserWrong(Exception):
    """Engines cannot run as the given user."""


class NotReadable(Exception):
    """The engine's user cannot read a file."""


@dataclass(frozen=True)
class EngineUser:
    """A user other than the agent's."""

    name: str
    uid: int
    gid: int
    groups: tuple[int, ...]
    home: str

    @property
    def environment(self) -> dict[str, str]:
        """Variables that let programs find the user's home folder."""
        return {"HOME": self.home, "USER": self.name, "LOGNAME": self.name}

    def let_read(self, paths: Iterable[str], *, store: Path) -> None:
        """Make these files readable for the user.

        Changes the modes only of files in the store. Raises NotReadable, OSError.
        """
        root = store.resolve()
        for text in paths:
            path = Path(text)
            if not path.is_absolute():
                continue  # the name of a model in a daemon's own store
            real = path.resolve()
            if real.is_relative_to(root):
                _open(real, root)
            self._check(real)

    def _check(self, path: Path) -> None:
        for each in (*reversed(path.parents), path):
            needed = 0o5 if each.is_dir() and each == path else 0o1 if each.is_dir() else 0o4
            if not self._may(each, needed):
                raise NotReadable(
                    f"engines run as user `{self.name}`, which cannot access `{each}`; choose a --store that it can "
                    f"read"
                )

    def _may(self, path: Path, needed: int) -> bool:
        stat = path.stat()
        shift = 6 if stat.st_uid == self.uid else 3 if stat.st_gid in (self.gid, *self.groups) else 0
        return (stat.st_mode >> shift) & needed == needed


def engine_user(name: str) -> EngineUser:
    """Find a user that engines may run as. Raises EngineUserWrong."""
    try:
        found = pwd.getpwnam(name)
    except KeyError:
        raise EngineUserWrong(f"user `{name}` does not exist on this machine; create it, or name another") from None
    if found.pw_uid == 0:
        raise EngineUserWrong("engines do not run as root; name another user")
    if os.geteuid() not in (0, found.pw_uid):
        raise EngineUserWrong("only an agent that runs as root can run engines as another user")
    groups = tuple(os.getgrouplist(name, found.pw_gid))
    return EngineUser(name, found.pw_uid, found.pw_gid, groups, found.pw_dir)


def usual_engine_user() -> EngineUser | None:
    """Return the default user for engines. None: they run as the agent's own user."""
    if os.geteuid() != 0 or sys.platform != "linux":
        return None
    try:
        return engine_user(USUAL)
    except EngineUserWrong:
        return None


def _open(path: Path, root: Path) -> None:
    """Make one model of the store readable for all users, and the folders that lead to it accessible."""
    for each in (root, *(p for p in path.parents if p != root and p.is_relative_to(root))):
        _add(each, 0o011)
    if not path.is_dir():
        _add(path, 0o044)
        return
    _add(path, 0o055)
    for folder, folders, files in os.walk(path):
        for name in folders:
            _add(Path(folder, name), 0o055)
        for name in files:
            _add(Path(folder, name), 0o044)


def _add(path: Path, bits: int) -> None:
    if path.is_symlink():
        return
    mode = path.stat().st_mode & 0o7777
    if mode & bits != bits:
        path.chmod(mode | bits)
