"""The folders and files of one user's local mode. All are private: they hold prompts, tokens and the state's key."""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

HOST = "local"
"""The name of this machine as a host."""
NAMESPACE = "default"
"""The namespace of documents that name none."""
PRIVATE_FOLDER, PRIVATE_FILE = 0o700, 0o600


@dataclass(frozen=True)
class LocalFolders:
    """Where one user's local mode keeps its files, by the XDG Base Directory Specification."""

    config: Path
    """The desired state: YAML files of services and Models. People and the everyday commands write them."""
    state: Path
    """What local mode itself writes: locks, Pulumi's state, what was applied, the log."""
    store: Path
    """The directory of the agent: models, logs of engines."""

    @classmethod
    def of_user(cls, environment: Mapping[str, str] = os.environ) -> LocalFolders:
        """Return the folders of the user whose environment this is."""
        home = Path(environment.get("HOME") or Path.home())

        def below(variable: str, usual: str) -> Path:
            named = environment.get(variable, "")
            # The specification has relative paths ignored.
            return (Path(named) if named.startswith("/") else home / usual) / "herdsman" / "local"

        return cls(
            config=below("XDG_CONFIG_HOME", ".config"),
            state=below("XDG_STATE_HOME", ".local/state"),
            store=below("XDG_DATA_HOME", ".local/share"),
        )

    @property
    def lock(self) -> Path:
        """Locked by the running instance."""
        return self.state / "instance.lock"

    @property
    def instance(self) -> Path:
        """What the running instance says of itself (`instance.Instance`)."""
        return self.state / "instance.json"

    @property
    def settings(self) -> Path:
        """The options of the last `local up` (`instance.Settings`)."""
        return self.state / "settings.json"

    @property
    def applied(self) -> Path:
        """What was applied, and why other documents were not (`applied.Applied`)."""
        return self.state / "applied.json"

    @property
    def log(self) -> Path:
        """The log of an instance in the background."""
        return self.state / "local.log"

    @property
    def pulumi(self) -> Path:
        """The folder of Pulumi's state, its passphrase and its work directories."""
        return self.state / "pulumi"

    @property
    def credentials(self) -> Path:
        """A file of NAME=VALUE lines, or a folder, with credentials for sources of models. It need not exist."""
        return self.config / "credentials"

    def make(self) -> None:
        """Make the folders, which only the user can read. Raises OSError."""
        for folder in (self.config, self.state, self.store):
            folder.mkdir(mode=PRIVATE_FOLDER, parents=True, exist_ok=True)
            folder.chmod(PRIVATE_FOLDER)


def write_private(path: Path, text: str) -> None:
    """Write a file that only the user can read, by one rename, so that readers see the old content or the new one."""
    draft = path.with_name(f".{path.name}.{os.getpid()}.new")
    descriptor = os.open(draft, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, PRIVATE_FILE)
    try:
        with os.fdopen(descriptor, "w", encoding="utf-8") as file:
            file.write(text)
            file.flush()
            os.fsync(file.fileno())
        draft.replace(path)
    except BaseException:
        draft.unlink(missing_ok=True)
        raise


def read_json(path: Path) -> Any:
    """Return the content of a file of this package; None if it does not exist, or is no JSON."""
    try:
        return json.loads(path.read_text(encoding="utf-8"))
    except (FileNotFoundError, ValueError):
        return None
