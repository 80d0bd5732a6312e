"""The record of what was applied: `applying` writes it; the gateway's routes and the commands read it."""

from __future__ import annotations

from pathlib import Path

from pydantic import BaseModel, ConfigDict, Field, ValidationError
from pydantic.alias_generators import to_camel

from automation.local.folders import read_json, write_private
from kubeapi.json_types import Json


class _Entry(BaseModel):
    model_config = ConfigDict(frozen=True, extra="ignore", alias_generator=to_camel, populate_by_name=True)


class AppliedService(_Entry):
    """One service of the folder, or one that still runs although its file cannot be read."""

    dialect: str
    namespace: str
    name: str
    file: str
    """The name of its file in the folder."""
    spec_hash: str
    """Identifies the content of its document and of its Model at the last reading."""
    process: str = ""
    """Key of its process on the agent; empty while it has none."""
    problem: str = ""
    """Why the document is not applied; what ran before goes on. Empty when it is applied."""
    model: str = ""
    stopped: bool = False
    """It is suspended, or has no replica."""
    context_size: int | None = None
    default_context: str = ""
    """The context in tokens that Herdsman chose, or `pending`; empty if the document sets it."""
    engine_name: str = ""
    """What the engine expects as `model`; empty: any name."""
    created_s: int = 0
    capabilities: tuple[str, ...] = ()
    cache_keys: tuple[str, ...] = ()
    """Folders of the agent's store with its files."""
    document: Json = Field(default_factory=dict)

    @property
    def full_name(self) -> str:
        return f"{self.namespace}/{self.name}"


class FileProblem(_Entry):
    """A file, or the whole folder, that could not be read."""

    file: str
    message: str


class Applied(_Entry):
    """The result of one reading of the folder."""

    services: tuple[AppliedService, ...] = ()
    problems: tuple[FileProblem, ...] = ()
    engine_problem: str = ""
    """Why Pulumi could not run at all."""

    @classmethod
    def read(cls, path: Path) -> Applied:
        """Read the record; an empty one if there is none."""
        try:
            return cls.model_validate(read_json(path) or {})
        except ValidationError:
            return cls()

    def write(self, path: Path) -> None:
        """Write the record by one rename. Raises OSError."""
        write_private(path, self.text() + "\n")

    def text(self) -> str:
        """Return the record as JSON. Records with the same content have the same text."""
        return self.model_dump_json(by_alias=True, exclude_defaults=True)

    def of(self, dialect: str, namespace: str, name: str) -> AppliedService | None:
        """Return the entry of a service."""
        wanted = (dialect, namespace, name)
        return next((each for each in self.services if (each.dialect, each.namespace, each.name) == wanted), None)
