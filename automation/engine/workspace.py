"""The directories and the environment of the CLI: a home without logs, and one fixed directory for each stack.

Called by `pulumi_engine`. All files are made again when they are missing.
"""

from __future__ import annotations

import os
import pathlib
import shutil
from collections.abc import Mapping
from dataclasses import dataclass

from automation.engine import key_keeper
from automation.engine.port import Stack
from components import naming

_OWN_PREFIXES = ("PULUMI_", "VAULT_", "HERDSMAN_")


@dataclass(frozen=True)
class StackDirectory:
    """The work directory of one stack."""

    path: pathlib.Path

    @property
    def events(self) -> pathlib.Path:
        """The event log of the run under way."""
        return self.path / "events.jsonl"

    @property
    def output(self) -> pathlib.Path:
        """The output of the last run."""
        return self.path / "last-run.log"

    @property
    def record(self) -> pathlib.Path:
        """The record of the runs that did not end properly."""
        return self.path / "runs.json"


class Workspace:
    """The directories under one root, and the environment that all runs share."""

    def __init__(self, root: pathlib.Path, project: str = naming.PROJECT) -> None:
        self._project = project
        self.root = root.expanduser().absolute()
        self._home = self.root / "home"

    def prepare(self) -> None:
        """Make the home without logs: the CLI would keep up to 500 MB of them, a megabyte for 100 applied services.

        It has no option for that; a file in the place of the directory prevents the logs.
        """
        self._home.mkdir(parents=True, exist_ok=True)
        logs = self._home / "logs"
        if logs.is_dir():
            shutil.rmtree(logs)
        logs.touch()

    def directory(self, stack: Stack, keeper: key_keeper.KeyKeeper) -> StackDirectory:
        """Make the stack's directory and its settings if they are missing, or if their key cannot be opened."""
        path = self.root / "stacks" / stack.name
        path.mkdir(parents=True, exist_ok=True)
        _write_missing(path / "Pulumi.yaml", f"name: {self._project}\nruntime: python\n")
        settings = path / f"Pulumi.{stack.name}.yaml"
        if not _opened(settings, keeper):
            head = f"secretsprovider: {key_keeper.PROVIDER_URL}\nencryptedkey: "
            _write(settings, f"{head}{keeper.new_data_key()}\n")
        return StackDirectory(path)

    def stacks(self) -> set[Stack]:
        """Return the stacks with a directory, which this machine has worked on."""
        root = self.root / "stacks"
        return {Stack.parse(path.name) for path in root.iterdir()} if root.is_dir() else set()

    def discard_settings(self, stack: Stack) -> None:
        """Delete the stack's settings; `directory` then writes them again with a key that opens."""
        (self.root / "stacks" / stack.name / f"Pulumi.{stack.name}.yaml").unlink(missing_ok=True)

    def discard(self, stack: Stack) -> None:
        """Remove the stack's directory."""
        shutil.rmtree(self.root / "stacks" / stack.name, ignore_errors=True)

    def environment(self, extra: Mapping[str, str]) -> dict[str, str]:
        """Return the environment of this process without variables that affect the CLI, and with those it needs."""
        inherited = {name: value for name, value in os.environ.items() if not name.startswith(_OWN_PREFIXES)}
        return {
            **inherited,
            "PULUMI_HOME": str(self._home),
            "PULUMI_SKIP_UPDATE_CHECK": "true",
            "PULUMI_DISABLE_AUTOMATIC_PLUGIN_ACQUISITION": "true",
            "PULUMI_AUTOMATION_API": "true",
            # Enables --event-log.
            "PULUMI_DEBUG_COMMANDS": "true",
            # The state is written once, at the end. After a crash the next apply adopts the objects by their fixed
            # names.
            "PULUMI_SKIP_CHECKPOINTS": "true",
            "PULUMI_DIY_BACKEND_DISABLE_CHECKPOINT_BACKUPS": "true",
            # For each stack that it lists from a database, the CLI takes two connections, of a pool of two for each
            # core. With its default of ten stacks at a time, the requests would wait for each other for ever.
            "PULUMI_DIY_BACKEND_PARALLEL": "1",
            # Saves one listing, of stacks in a layout that Herdsman never wrote.
            "PULUMI_DIY_BACKEND_NO_LEGACY_WARNING": "true",
            # A server that accepts no connection would delay a run for minutes.
            "PGCONNECT_TIMEOUT": os.environ.get("PGCONNECT_TIMEOUT", "10"),
            # A settings file may be lost or older than the state. The state contains its key.
            "PULUMI_FALLBACK_TO_STATE_SECRETS_MANAGER": "true",
            # Most memory of a small run is allocated once, at its start: collecting it took a third of the CPU.
            "GOGC": os.environ.get("HERDSMAN_ENGINE_GOGC", "400"),
            **extra,
        }


def _write_missing(path: pathlib.Path, text: str) -> None:
    try:
        if path.read_text().strip():
            return
    except OSError:
        pass
    _write(path, text)


def _opened(settings: pathlib.Path, keeper: key_keeper.KeyKeeper) -> bool:
    """Return whether a stack's settings exist with a key that the current passphrase opens."""
    try:
        key = settings.read_text().partition("encryptedkey: ")[2].split()
    except (OSError, ValueError):
        return False
    return bool(key) and keeper.opens(key[0])


def _write(path: pathlib.Path, text: str) -> None:
    partial = path.with_name(f".{path.name}.partial")
    partial.write_text(text)
    partial.replace(path)
