"""Machines whose systemd or launchd is a program of `tests/fakes/`: paths are redirected, the processes are real."""

from __future__ import annotations

import contextlib
import json
import shutil
import sys
from dataclasses import replace
from functools import cached_property
from pathlib import Path
from typing import Any, Literal

import psutil

from agent.steps.local import LocalMachine
from agent.steps.machine import Facts

FAKES = Path(__file__).resolve().parent.parent / "fakes"
OUTSIDE = ("/etc/", "/Library/", "/var/")


class FakedMachine(LocalMachine):
    """This machine with system directories under `root`, assumed root rights, and a fake service manager."""

    def __init__(self, root: Path, manager: Literal["systemctl", "launchctl"]) -> None:
        self._root = root
        self.manager = manager
        self.commands = root / "commands"
        self.commands.mkdir(parents=True)
        self.units = root / "etc/systemd/system"
        (self.commands / manager).symlink_to(FAKES / manager)
        self.state = self.commands / f"{manager}-state"
        self.state.mkdir()
        for directory in (self.units, root / "Library/LaunchDaemons"):
            directory.mkdir(parents=True)
        (self.state / "units").write_text(str(self.units))
        (self.state / "root").write_text(str(root))

    @cached_property
    def facts(self) -> Facts:
        return replace(super().facts, os="linux" if self.manager == "systemctl" else "darwin", uid=0)

    def run(self, argv: Any, **options: Any) -> Any:
        words = [self._there(word) if word.startswith(OUTSIDE) else word for word in argv]
        if words[0] == self.manager:
            # The interpreter is named here: finding a Python on PATH through the first line takes longer than the
            # program.
            words[:1] = [sys.executable, "-S", "-E", str(self.commands / self.manager)]
        elif words[0] in ("systemctl", "launchctl", "journalctl", "loginctl"):
            words[0] = str(self.commands / words[0])
        return super().run(words, **options)

    def read(self, path: str, **options: Any) -> bytes | None:
        return super().read(self._there(path), **options)

    def stat(self, path: str, **options: Any) -> Any:
        return super().stat(self._there(path), **options)

    def write(self, path: str, content: bytes, **options: Any) -> None:
        Path(self._there(path)).parent.mkdir(parents=True, exist_ok=True)
        super().write(self._there(path), content, **options)

    def remove(self, path: str, **options: Any) -> None:
        super().remove(self._there(path), **options)

    def make_directory(self, path: str, **options: Any) -> None:
        super().make_directory(self._there(path), **options)

    def _there(self, path: str) -> str:
        return f"{self._root}{path}" if path.startswith(OUTSIDE) else path

    def calls(self) -> list[str]:
        """Return all commands that the manager received since the last call."""
        log = self.state / "calls"
        said = log.read_text().splitlines() if log.exists() else []
        log.write_text("")
        return said

    def changes(self) -> list[str]:
        """Return the commands that changed something, by their verb."""
        verbs = [next(word for word in call.split() if not word.startswith("-")) for call in self.calls()]
        return [
            verb for verb in verbs if verb not in ("show", "is-enabled", "is-system-running", "print", "print-disabled")
        ]

    def pid_of(self, name: str) -> int:
        """Return the process id of a service; 0 when it does not run."""
        now = self.state / f"{name}.now.json"
        return int(json.loads(now.read_text())["pid"]) if now.exists() else 0

    def end(self) -> None:
        """Kill all processes of the fake manager, and delete its state."""
        for file in self.state.glob("*.now.json"):
            # A process that got a stop signal may end at any point of this block.
            with contextlib.suppress(psutil.NoSuchProcess):
                keeper = psutil.Process(int(json.loads(file.read_text())["keeper"]))
                for each in (keeper, *keeper.children(recursive=True)):
                    with contextlib.suppress(psutil.NoSuchProcess):
                        each.kill()
        shutil.rmtree(self.state, ignore_errors=True)
