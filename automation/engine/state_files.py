"""Reads and prunes a file:// state backend without a CLI process. Called by `pulumi_engine`.

The layout is that of the pinned CLI (`.pulumi/stacks/<project>/<stack>.json`, checkpoint version 3). Only reads depend
on it: a file with an unexpected layout counts as unreadable, and the stack is made again.
"""

from __future__ import annotations

import contextlib
import json
import pathlib
import urllib.parse
from typing import Any

from automation.engine.checkpoint import parse_checkpoint
from automation.engine.port import Stack
from components import naming

_HISTORY_SUFFIXES = (".history.json", ".checkpoint.json")


class StateFiles:
    """The files of one file:// backend. Different stacks have different files, so there is no locking."""

    def __init__(self, root: pathlib.Path, project: str = naming.PROJECT) -> None:
        self.root = root
        self._project = project
        self._book = root / ".pulumi"

    @staticmethod
    def of_url(url: str) -> StateFiles | None:
        """Return the files of a backend URL; None for any other URL than file://."""
        if not url.startswith("file://"):
            return None
        path = urllib.parse.unquote(url.removeprefix("file://").partition("?")[0])
        return StateFiles(pathlib.Path(path).expanduser().absolute())

    @property
    def url(self) -> str:
        """The backend URL with an absolute path, because the CLI runs in another directory."""
        return f"file://{urllib.parse.quote(str(self.root))}"

    def create(self) -> None:
        """Make the directory that the CLI requires."""
        self.root.mkdir(parents=True, exist_ok=True)

    def names(self) -> set[str]:
        """The names of the stacks that have a checkpoint."""
        return {path.name.removesuffix(".json") for path in self._stacks().glob("*.json") if path.name[0] != "."}

    def stacks(self) -> set[Stack]:
        """The stacks that have a checkpoint."""
        return {Stack.parse(name) for name in self.names()}

    def holder(self, stack: Stack) -> tuple[str, str] | None:
        """Return the holder of the stack's lock and the time in the lock; None for no lock."""
        for path in sorted(self._locks(stack).glob("*.json")):
            try:
                lock = json.loads(path.read_bytes())
                return f"{lock['username']}@{lock['hostname']} (pid {lock['pid']})", str(lock["timestamp"])
            except FileNotFoundError:
                continue
            except (ValueError, KeyError, TypeError):
                return "unknown", "unknown"
        return None

    def export(self, stack: Stack) -> dict[str, Any] | None:
        """The state in the form of `pulumi stack export`; None when there is no such stack. Raises CheckpointBroken."""
        path = self._checkpoint(stack)
        try:
            text = path.read_bytes()
        except FileNotFoundError:
            return None
        return parse_checkpoint(text, f"`{path}`")

    def deployment(self, stack: Stack) -> dict[str, Any] | None:
        """The stack's deployment; empty when nothing was deployed yet, None when there is no such stack.

        Raises CheckpointBroken.
        """
        export = self.export(stack)
        return None if export is None else export["deployment"]

    def make(self, stack: Stack) -> bool:
        """Write the checkpoint of a new, empty stack, which saves a CLI process. False when the CLI must do it.

        This requires a backend that the CLI has marked, in the layout that this module knows. In an unmarked backend
        the CLI would take the checkpoint for one of an older layout.
        """
        try:
            marked = (self._book / "meta.yaml").read_text().split() == ["version:", "1"]
        except OSError:
            marked = False
        path = self._checkpoint(stack)
        if not marked or path.exists():
            return False
        path.parent.mkdir(parents=True, exist_ok=True)
        partial = path.with_name(f".{path.name}.partial")
        checkpoint = {"stack": f"organization/{self._project}/{stack.name}", "latest": None}
        partial.write_text(json.dumps({"version": 3, "checkpoint": checkpoint}))
        partial.replace(path)
        return True

    def mend(self) -> None:
        """Write the layout file again when a full disk cut it off; without it the CLI refuses all commands."""
        mark = self._book / "meta.yaml"
        try:
            broken = mark.read_text().split() != ["version:", "1"]
        except OSError:
            return
        if broken and self._stacks().is_dir():
            partial = mark.with_name(".meta.yaml.partial")
            partial.write_text("version: 1\n")
            partial.replace(mark)

    def set_aside(self, stack: Stack) -> None:
        """Rename an unreadable checkpoint, and keep it for inspection."""
        path = self._checkpoint(stack)
        with contextlib.suppress(FileNotFoundError):
            path.replace(path.with_name(f"{path.name}.unreadable"))
        for suffix in (".attrs", ".bak", ".bak.attrs"):
            path.with_name(path.name + suffix).unlink(missing_ok=True)

    def drop_broken_locks(self, stack: Stack) -> bool:
        """Delete locks that a full disk cut off: they name no holder, and the CLI cannot read them.

        The lock of a living run is always whole, because the CLI renames it into its place.
        """
        dropped = False
        for path in self._locks(stack).glob("*"):
            if path.suffix == ".attrs":
                continue
            try:
                json.loads(path.read_bytes())
            except FileNotFoundError:
                continue
            except ValueError:
                path.unlink(missing_ok=True)
                dropped = True
        return dropped

    def prune(self, stack: Stack, *, keep: int) -> None:
        """Delete all but the newest `keep` runs from the stack's history, and all its backups, which are not used."""
        history = self._book / "history" / self._project / stack.name
        for suffix in _HISTORY_SUFFIXES:
            # The names contain a timestamp, so they sort by time.
            for path in sorted(history.glob(f"*{suffix}"))[:-keep]:
                path.unlink(missing_ok=True)
                path.with_name(path.name + ".attrs").unlink(missing_ok=True)
        backups = self._book / "backups" / self._project / stack.name
        if backups.is_dir():
            for path in backups.iterdir():
                path.unlink(missing_ok=True)

    def _locks(self, stack: Stack) -> pathlib.Path:
        return self._book / "locks" / "organization" / self._project / stack.name

    def _stacks(self) -> pathlib.Path:
        return self._book / "stacks" / self._project

    def _checkpoint(self, stack: Stack) -> pathlib.Path:
        return self._stacks() / f"{stack.name}.json"
