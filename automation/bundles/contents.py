"""The list of a bundle's contents, which is its first file: what each file is, its size and SHA-256. Pure."""

from __future__ import annotations

import json
from collections.abc import Iterable
from enum import StrEnum
from typing import Annotated, Literal

from pydantic import BaseModel, ConfigDict, Field, ValidationError, field_validator, model_validator

LIST_NAME = "herdsman-bundle.json"
"""The name of the list in the archive."""
MOST_LIST_BYTES = 16 << 20
_MOST_NAME_BYTES = 1024
_MOST_PART_BYTES = 220


class BundleError(Exception):
    """A bundle cannot be made or loaded. The message says what is wrong, `hint` what to do."""

    def __init__(self, message: str, *, hint: str = "") -> None:
        super().__init__(message)
        self.hint = hint


class BundleInvalid(BundleError):
    """The archive is damaged, incomplete, or was not made by Herdsman."""


class Kind(StrEnum):
    """The kind of a file in a bundle. Each kind has a folder."""

    MODEL = "model"
    IMAGE = "image"
    WHEEL = "wheel"
    MANIFEST = "manifest"
    INSTALL = "install"

    @property
    def folder(self) -> str:
        """The folder of the archive with the files of this kind."""
        return self.value if self is Kind.INSTALL else f"{self.value}s"


class _Part(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid")


class BundledFile(_Part):
    """One file of a bundle."""

    path: str
    """Its name in the archive. For a model: `models/CACHE_KEY/FILE`, as in the store of an agent."""
    kind: Kind
    bytes: int = Field(ge=0)
    sha256: Annotated[str, Field(pattern=r"^[0-9a-f]{64}$")]
    source: str = ""
    """The address that a model's file was fetched from, without a password or a query."""
    licence: str = ""
    """The licence of a model: from the catalog, else from the header; empty if neither names it."""

    @field_validator("path")
    @classmethod
    def _path(cls, value: str) -> str:
        if why := unsafe(value):
            raise ValueError(f"the name {value[:100]!r} {why}")
        return value

    @model_validator(mode="after")
    def _in_its_folder(self) -> BundledFile:
        parts = self.path.split("/")
        least = 3 if self.kind is Kind.MODEL else 2
        if parts[0] != self.kind.folder or len(parts) < least:
            raise ValueError(f"the name {self.path[:100]!r} is not that of a {self.kind.value}")
        return self


class BundledImage(_Part):
    """One container image, in the OCI layout `images`."""

    name: Annotated[str, Field(min_length=1, max_length=512)]
    """The name that manifests use; in the layout it is the name of the reference."""


class Contents(_Part):
    """The list of a bundle."""

    format: Literal[1] = 1
    herdsman: str
    """The version of Herdsman that made the bundle."""
    files: tuple[BundledFile, ...]
    """All files but this list, sorted by path."""
    images: tuple[BundledImage, ...] = ()

    @field_validator("files")
    @classmethod
    def _each_once(cls, value: tuple[BundledFile, ...]) -> tuple[BundledFile, ...]:
        names = [file.path for file in value]
        if names != sorted(set(names)):
            raise ValueError("the files are not sorted, or one is listed twice")
        folders = {name[:at] for name in names for at, character in enumerate(name) if character == "/"}
        if both := folders.intersection(names):
            raise ValueError(f"{min(both)[:100]!r} would be both a file and a folder")
        return value

    def of_kind(self, kind: Kind) -> tuple[BundledFile, ...]:
        """Return the files of one kind."""
        return tuple(file for file in self.files if file.kind is kind)

    def dumped(self) -> bytes:
        """Return the text of the list, the same for the same contents."""
        return (json.dumps(self.model_dump(mode="json", exclude_defaults=False), indent=2) + "\n").encode()

    @classmethod
    def parsed(cls, text: bytes) -> Contents:
        """Read the text of a list. Raises BundleInvalid."""
        try:
            return cls.model_validate_json(text)
        except ValidationError as error:
            first = error.errors()[0]
            where = ".".join(str(part) for part in first["loc"]) or LIST_NAME
            raise BundleInvalid(
                f"the list of the bundle is not valid: {where}: {first['msg'].removeprefix('Value error, ')}",
                hint="a bundle of a later version of Herdsman needs that version",
            ) from None


def sorted_files(files: Iterable[BundledFile]) -> tuple[BundledFile, ...]:
    """Return files in the order of the archive."""
    return tuple(sorted(files, key=lambda file: file.path))


def unsafe(name: str) -> str:
    """Return why a name must not be written below a folder; empty if it may be."""
    if not name or len(name.encode(errors="replace")) > _MOST_NAME_BYTES:
        return "is empty or too long"
    if any(not character.isprintable() for character in name) or "\\" in name:
        return "has a character that names of files in bundles cannot have"
    if name.startswith("/"):
        return "is absolute"
    for part in name.split("/"):
        if part in ("", ".", ".."):
            return "leads out of its folder" if part == ".." else "has an empty part"
        if len(part.encode()) > _MOST_PART_BYTES:
            return "has a part that is too long"
    return ""
