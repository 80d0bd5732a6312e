"""The definition of a service, in the terms that systemd and launchd share. Without I/O.

`agent.steps.systemd` and `agent.steps.launchd` convert it to their formats.
"""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field, fields

MARK = "HERDSMAN_UNIT"
"""Environment variable with `Service.mark`, which shows from which definition a running process was started."""


_NOT_MARKED = frozenset({"settle_s", "private_environment"})
"""Fields that do not affect a running process."""


class NotExpressible(ValueError):
    """A service that the file format of the manager cannot express, or that no manager would run."""


@dataclass(frozen=True)
class Service:
    """One program under a service manager. Secrets must be in a file that `argv` names."""

    name: str
    """Name of the unit, such as `herdsman-agent`. launchd's label is `dev.` and the name with its first `-` as `.`."""
    description: str
    argv: tuple[str, ...]
    """`argv[0]` is an absolute path."""
    environment: Mapping[str, str] = field(default_factory=dict)
    """The complete environment of the program, without that of any shell."""
    environment_file: str = ""
    """File with more variables, in the format of `environment_file_text`, for values that other users must not read."""
    user: str | None = None
    """The user of the process. None: root, or the owner of the user's service manager."""
    keep_children: bool = False
    """When the service stops or restarts, leave its child processes running."""
    restart_delay_s: int = 5
    max_starts: int | None = None
    """Starts within five minutes before systemd gives up. None: never. launchd never gives up."""
    stop_timeout_s: int = 60
    """Time between SIGTERM and SIGKILL."""
    log_file: str = ""
    """File for the output on launchd. systemd uses its journal."""
    private_environment: bool = False
    """`environment` comes from a user of the cluster."""
    log_to_file: bool = False
    """Make systemd append the output to `log_file` as well."""
    settle_s: float = 2.0
    """How long a process must stay up before its start counts as successful."""
    hardened: bool = True
    """Make system directories read-only for the service. Stronger sandboxing is not used, because it blocks GPUs."""

    def __post_init__(self) -> None:
        if not re.fullmatch(r"[a-z0-9]([a-z0-9.-]*[a-z0-9])?", self.name):
            raise NotExpressible(f"`{self.name}` is not a service name: use lower-case letters, digits, `-` and `.`")
        if not self.argv or not self.argv[0].startswith("/"):
            raise NotExpressible(
                f"the program of `{self.name}` needs an absolute path, not `{' '.join(self.argv[:1])}`"
            )
        if self.user is not None and not re.fullmatch(r"[A-Za-z_][A-Za-z0-9_.-]*\$?", self.user):
            raise NotExpressible(f"`{self.user}` is not a user name")
        for name in self.environment:
            if not re.fullmatch(r"[A-Za-z_][A-Za-z0-9_]*", name):
                raise NotExpressible(f"`{name}` is not the name of an environment variable")
        if any("\0" in text for text in (*self.argv, *self.environment.values(), self.description, self.log_file)):
            raise NotExpressible(f"an argument or variable of `{self.name}` contains a NUL")

    @property
    def file_mode(self) -> int:
        """Mode of the definition's file. A file with private variables is readable only by its owner."""
        return 0o600 if self.private_environment else 0o644

    @property
    def label(self) -> str:
        """launchd's label: `dev.herdsman.agent` for `herdsman-agent`."""
        return f"dev.{self.name.replace('-', '.', 1)}"

    @property
    def mark(self) -> str:
        """A short hash of the definition.

        A different one means that the process was started from another definition.
        """
        # Defaults are omitted, so that a new field restarts no service.
        defaults = {each.name: each.default for each in fields(self)}
        said = {
            name: value for name, value in asdict(self).items() if name not in _NOT_MARKED and value != defaults[name]
        }
        return hashlib.sha256(json.dumps(said, sort_keys=True).encode()).hexdigest()[:16]

    @property
    def marked_environment(self) -> dict[str, str]:
        return {**self.environment, MARK: self.mark}


def environment_file_text(values: Mapping[str, str]) -> str:
    """Format variables so that systemd's EnvironmentFile= and a POSIX shell's `.` both read them unchanged."""
    lines = []
    for name, value in sorted(values.items()):
        if not re.fullmatch(r"[A-Za-z_][A-Za-z0-9_]*", name) or "\0" in value:
            raise NotExpressible(f"`{name}` is not the name of an environment variable, or its value contains a NUL")
        escaped = re.sub(r'(["\\$`])', r"\\\1", value)
        lines.append(f'{name}="{escaped}"\n')
    return "".join(lines)
