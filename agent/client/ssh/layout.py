"""The paths on a host over SSH, the names of its units, and the record of each process. Without I/O.

The store of a host has these files:

    <store>/models/<cache key>/<file>         shared by all processes
    <store>/processes/<unit>.json             the record: the plan of a process and its port
    <store>/processes/<unit>.env              values of its secret variables, readable by the owner alone
    <store>/processes/<unit>.proved           the start of the process that has answered a completion
    <store>/logs/<unit>.log
"""

from __future__ import annotations

import hashlib
import re
from dataclasses import dataclass

from pydantic import BaseModel, ConfigDict, ValidationError

from agent.contract import FilePlan, ProcessPlan
from program.desired.web_address import AddressInvalid, WebAddress, shown

UNIT_PREFIX = "herdsman-process-"
LAUNCH = "HERDSMAN_LAUNCH"
"""Environment variable with the launch hash of a running process."""
_LONGEST_UNIT = 200


class LayoutInvalid(ValueError):
    """A key or a file name that would leave its directory."""


class Record(BaseModel):
    """The stored record of a process.

    Unknown fields are ignored, so that an older version can read the records of a newer one after a downgrade.
    """

    model_config = ConfigDict(frozen=True, extra="ignore")

    key: str
    plan: ProcessPlan
    generation: int = 0
    """Incremented at each new plan. A HostProcess provides its generation instead."""
    port: int
    removing: bool = False
    """The process is being removed."""
    earlier: ProcessPlan | None = None
    """The plan of the process that runs, while the files of `plan` are not on the host."""


def read_record(text: str) -> Record | None:
    """Parse a record. Returns None if it is invalid, for example written by a newer Herdsman."""
    try:
        return Record.model_validate_json(text)
    except ValidationError:
        return None


def unit_name(key: str) -> str:
    """Return the name of a process's unit, `herdsman-process-<namespace>.<name>`. Raises LayoutInvalid."""
    namespace, _, name = key.partition("/")
    for part in (namespace, name):
        if not re.fullmatch(r"[a-z0-9]([a-z0-9.-]*[a-z0-9])?", part):
            raise LayoutInvalid(f"`{key}` is not a `namespace/name` of lower-case letters, digits, `-` and `.`")
    unit = f"{UNIT_PREFIX}{namespace}.{name}"
    if len(unit) <= _LONGEST_UNIT and "." not in namespace:
        return unit
    return f"{unit[: _LONGEST_UNIT - 17]}-{hashlib.sha256(key.encode()).hexdigest()[:16]}"


@dataclass(frozen=True)
class Layout:
    """The directories of one store; `root` is absolute."""

    root: str

    @classmethod
    def of(cls, store: str, home: str) -> Layout:
        """Return the layout, with `~` resolved for the host's user. Raises LayoutInvalid."""
        path = home + store[1:] if store == "~" or store.startswith("~/") else store
        if not path.startswith("/") or "\n" in path:
            raise LayoutInvalid(f"the store `{store}` is not an absolute path")
        return cls(path.rstrip("/") or "/")

    @property
    def directories(self) -> tuple[str, ...]:
        return (self.root, self.processes, self.logs, self.models)

    @property
    def processes(self) -> str:
        return f"{self.root}/processes"

    @property
    def models(self) -> str:
        return f"{self.root}/models"

    @property
    def logs(self) -> str:
        return f"{self.root}/logs"

    def record(self, key: str) -> str:
        return f"{self.processes}/{unit_name(key)}.json"

    def secrets(self, key: str) -> str:
        return f"{self.processes}/{unit_name(key)}.env"

    def proved(self, key: str) -> str:
        return f"{self.processes}/{unit_name(key)}.proved"

    def log(self, key: str) -> str:
        return f"{self.logs}/{unit_name(key)}.log"

    def model(self, plan: FilePlan) -> str:
        """Return the path of a file: for a local source the path itself, else a path in the store.

        Raises LayoutInvalid.
        """
        local = local_path(plan.source)
        if local is not None:
            return local
        for part in (plan.cache_key, *plan.file_name.split("/")):
            if not part or part.startswith(".") or "\n" in part or "/" in part:
                raise LayoutInvalid(f"`{part}` is not a name of a file")
        return f"{self.models}/{plan.cache_key}/{plan.file_name}"

    def named(self, plan: FilePlan) -> str:
        """Return the value of a file's token in the arguments: its path, or the directory of its set.

        Raises LayoutInvalid.
        """
        path = self.model(plan)
        return f"{self.models}/{plan.cache_key}" if plan.directory and path.startswith(self.models) else path


def local_path(source: str) -> str | None:
    """Return the path of a source on the host itself, or None for one that is downloaded. Raises LayoutInvalid."""
    if source.startswith("/"):
        return source
    scheme, _, rest = source.partition("://")
    if scheme.lower() == "file":
        return rest.removeprefix("localhost")
    if scheme.lower() in ("hf", "s3"):
        raise LayoutInvalid(
            f"`{shown(source)}` needs an agent on the host, which has the tools and credentials for this source"
        )
    if scheme.lower() not in ("http", "https"):
        raise LayoutInvalid(f"`{shown(source)}` is neither an http(s) URL, a `file://` URL nor an absolute path")
    web_address(source)
    return None


def web_address(source: str) -> WebAddress:
    """Parse the address of a source that is downloaded. Raises LayoutInvalid."""
    try:
        return WebAddress.parse(source)
    except AddressInvalid as error:
        raise LayoutInvalid(f"`{shown(source)}` {error}") from None
