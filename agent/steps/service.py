"""What a service manager is to keep running, in words that systemd and launchd share. Pure.

`agent.steps.systemd` and `agent.steps.launchd` write it down in their own.
"""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field, fields

MARK = "HERDSMAN_UNIT"
"""Environment variable with `Service.mark`: tells of a running process which definition it was started from."""


_NOT_MARKED = frozenset({"settle_s", "private_environment"})
"""What a running process does not depend on."""


class NotExpressible(ValueError):
    """A service that its manager's file format cannot say, or that no manager would run."""


@dataclass(frozen=True)
class Service:
    """One program under a service manager. Anything secret belongs into a file that `argv` names."""

    name: str
    """`herdsman-agent`: the name of the unit, and after `dev.` with its first `-` as `.` launchd's label."""
    description: str
    argv: tuple[str, ...]
    """`argv[0]` is an absolute path."""
    environment: Mapping[str, str] = field(default_factory=dict)
    """All that the program gets: no shell's environment is passed on."""
    environment_file: str = ""
    """File with more of it, as `environment_file_text` writes it: what others on the machine must not read."""
    user: str | None = None
    """Who it runs as; None: root, or the user whose own manager it is."""
    keep_children: bool = False
    """Leave the processes that it started alone when it stops or is restarted."""
    restart_delay_s: int = 5
    max_starts: int | None = None
    """Starts within five minutes after which systemd gives up; None, and always on launchd: never."""
    stop_timeout_s: int = 60
    """Between SIGTERM and SIGKILL."""
    log_file: str = ""
    """Where output goes on launchd; systemd has its journal."""
    private_environment: bool = False
    """`environment` came from a user of the cluster."""
    log_to_file: bool = False
    """Have systemd append to `log_file` too."""
    settle_s: float = 2.0
    """How long a process has to stay up before its start counts."""
    hardened: bool = True
    """Keep system directories read-only for it. Never more: what else is on offer takes GPUs away."""

    def __post_init__(self) -> None:
        if not re.fullmatch(r"[a-z0-9]([a-z0-9.-]*[a-z0-9])?", self.name):
            raise NotExpressible(f"`{self.name}` is no service name: lower-case letters, digits, `-` and `.`")
        if not self.argv or not self.argv[0].startswith("/"):
            raise NotExpressible(
                f"the program of `{self.name}` needs an absolute path, not `{' '.join(self.argv[:1])}`"
            )
        if self.user is not None and not re.fullmatch(r"[A-Za-z_][A-Za-z0-9_.-]*\$?", self.user):
            raise NotExpressible(f"`{self.user}` is no user name")
        for name in self.environment:
            if not re.fullmatch(r"[A-Za-z_][A-Za-z0-9_]*", name):
                raise NotExpressible(f"`{name}` is no name of an environment variable")
        if any("\0" in text for text in (*self.argv, *self.environment.values(), self.description, self.log_file)):
            raise NotExpressible(f"an argument or variable of `{self.name}` has a NUL in it")

    @property
    def file_mode(self) -> int:
        """Mode of the definition's own file: variables, which may be private, are readable by its owner alone."""
        return 0o600 if self.private_environment else 0o644

    @property
    def label(self) -> str:
        """launchd's label: `herdsman-agent` is `dev.herdsman.agent`."""
        return f"dev.{self.name.replace('-', '.', 1)}"

    @property
    def mark(self) -> str:
        """A short hash of all this: another one means that the running process was started from another definition."""
        # What is as by default is left out, so that a new field restarts nothing.
        defaults = {each.name: each.default for each in fields(self)}
        said = {
            name: value for name, value in asdict(self).items() if name not in _NOT_MARKED and value != defaults[name]
        }
        return hashlib.sha256(json.dumps(said, sort_keys=True).encode()).hexdigest()[:16]

    @property
    def marked_environment(self) -> dict[str, str]:
        return {**self.environment, MARK: self.mark}


def environment_file_text(values: Mapping[str, str]) -> str:
    """Write variables so that systemd's EnvironmentFile= and a POSIX shell's `.` read them back as they are."""
    lines = []
    for name, value in sorted(values.items()):
        if not re.fullmatch(r"[A-Za-z_][A-Za-z0-9_]*", name) or "\0" in value:
            raise NotExpressible(f"`{name}` is no name of an environment variable, or its value has a NUL in it")
        escaped = re.sub(r'(["\\$`])', r"\\\1", value)
        lines.append(f'{name}="{escaped}"\n')
    return "".join(lines)
