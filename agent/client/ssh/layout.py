"""Where things are on a host over SSH, how its units are called, and what is written down of each process. Pure.

<store>/models/<cache key>/<file>         shared by all processes
<store>/processes/<unit>.json             the plan of a process, its port: the record
<store>/processes/<unit>.env              values of its secret variables, readable by the owner alone
<store>/processes/<unit>.proved           which start of it has answered a completion
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
"""Environment variable with the launch hash: tells of a running process by which plan it was started."""
_LONGEST_UNIT = 200


class LayoutInvalid(ValueError):
    """A key or a file's name that would leave its directory."""


class Record(BaseModel):
    """What a host remembers of a process. Fields of later versions are kept out of the way of earlier ones."""

    model_config = ConfigDict(frozen=True, extra="ignore")

    key: str
    plan: ProcessPlan
    generation: int = 0
    """Counts the plans; a HostProcess brings its own."""
    port: int
    removing: bool = False
    """Nobody wants it any more."""


def read_record(text: str) -> Record | None:
    """Read a record; None for one that makes no sense, which a newer Herdsman may have written."""
    try:
        return Record.model_validate_json(text)
    except ValidationError:
        return None


def unit_name(key: str) -> str:
    """Name the unit of a process, `herdsman-process-<namespace>.<name>`. Raises LayoutInvalid."""
    namespace, _, name = key.partition("/")
    for part in (namespace, name):
        if not re.fullmatch(r"[a-z0-9]([a-z0-9.-]*[a-z0-9])?", part):
            raise LayoutInvalid(f"`{key}` is no `namespace/name` of lower-case letters, digits, `-` and `.`")
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
        """Resolve `~` as the host's user would. Raises LayoutInvalid."""
        path = home + store[1:] if store == "~" or store.startswith("~/") else store
        if not path.startswith("/") or "\n" in path:
            raise LayoutInvalid(f"the store `{store}` is no absolute path")
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
        """Say where a file lies, or will: one of the host's own in its place. Raises LayoutInvalid."""
        local = local_path(plan.source)
        if local is not None:
            return local
        for part in (plan.cache_key, *plan.file_name.split("/")):
            if not part or part.startswith(".") or "\n" in part or "/" in part:
                raise LayoutInvalid(f"`{part}` is no name of a file")
        return f"{self.models}/{plan.cache_key}/{plan.file_name}"

    def named(self, plan: FilePlan) -> str:
        """Say what stands for a file in the arguments: its path, or the directory of its set. Raises LayoutInvalid."""
        path = self.model(plan)
        return f"{self.models}/{plan.cache_key}" if plan.directory and path.startswith(self.models) else path


def local_path(source: str) -> str | None:
    """Give the path of a source that lies on the host itself; None for one that is fetched. Raises LayoutInvalid."""
    if source.startswith("/"):
        return source
    scheme, _, rest = source.partition("://")
    if scheme.lower() == "file":
        return rest.removeprefix("localhost")
    if scheme.lower() in ("hf", "s3"):
        raise LayoutInvalid(f"`{shown(source)}` takes an agent on the host, which has the tools and credentials for it")
    if scheme.lower() not in ("http", "https"):
        raise LayoutInvalid(f"`{shown(source)}` is neither an http(s) URL, a `file://` URL nor an absolute path")
    web_address(source)
    return None


def web_address(source: str) -> WebAddress:
    """Read the address of a source that is fetched. Raises LayoutInvalid."""
    try:
        return WebAddress.parse(source)
    except AddressInvalid as error:
        raise LayoutInvalid(f"`{shown(source)}` {error}") from None
