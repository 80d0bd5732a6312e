"""The form of a catalog: models, and their variants by quantisation. Pure.

`loading` reads it from a file, `fitting` chooses a variant, `documents` makes the objects that serve it.
"""

from __future__ import annotations

import difflib
import re
from datetime import date
from typing import Annotated, Literal

from pydantic import Field, field_validator, model_validator

from program.desired.base import FrozenModel
from program.desired.keys import service_dns_name
from program.desired.model import GgufFacts

Capability = Literal["chat", "tools", "vision", "reasoning", "embedding", "rerank"]

NEAR_IDS = 3
"""Number of similar ids that a message names."""
_ID = r"^[a-z0-9]([a-z0-9.-]{0,61}[a-z0-9])?$"
_REPOSITORY = r"^[A-Za-z0-9][\w.-]{0,95}/[A-Za-z0-9][\w.-]{0,95}$"
_REVISION = r"^[A-Za-z0-9][\w.-]{0,95}$"
_SHA256 = r"^[a-f0-9]{64}$"
_PATH = re.compile(r"[A-Za-z0-9][\w.+-]*(/[A-Za-z0-9][\w.+-]*)*\.gguf", re.ASCII)
_SMALL_QUANTS = re.compile(r"(UD-)?(I?Q[123]|TQ[12])(_|$)")


class ModelFile(FrozenModel):
    """One file of a variant."""

    path: str = Field(max_length=400)
    """Path in the repository."""
    bytes: int = Field(gt=0)
    rounded: bool = False
    """`bytes` is not exact."""
    sha256: str | None = Field(default=None, pattern=_SHA256)

    @field_validator("path")
    @classmethod
    def _path(cls, value: str) -> str:
        if not _PATH.fullmatch(value):
            raise ValueError("must be the path of a .gguf file in the repository, without `..`")
        return value


class Variant(FrozenModel):
    """One quantisation of a model."""

    quant: str = Field(pattern=r"^[A-Za-z0-9][\w-]{0,31}$")
    """As its publisher names it, such as `Q4_K_M`."""
    repository: str = Field(pattern=_REPOSITORY)
    """`org/name` on Hugging Face."""
    revision: str = Field(default="", pattern=rf"{_REVISION}|^$")
    """Commit or tag; empty means the repository's default branch."""
    files: tuple[ModelFile, ...] = Field(min_length=1)
    """The engine opens the first."""
    projector: ModelFile | None = None
    """The multimodal projector in the same repository, which makes pictures readable for the model."""

    @property
    def bytes(self) -> int:
        """The size of all files."""
        return sum(file.bytes for file in self.files)

    @property
    def is_rounded(self) -> bool:
        """Whether the size of a file is not exact."""
        return any(file.rounded for file in self.files)

    @property
    def source(self) -> str:
        """The value of a Model's `spec.source`: the file, or the repository of several files."""
        return self.repository_address if len(self.files) > 1 else f"{self.repository_address}/{self.files[0].path}"

    @property
    def repository_address(self) -> str:
        """The repository as `hf://org/name[@revision]`."""
        return f"hf://{self.repository}@{self.revision}" if self.revision else f"hf://{self.repository}"

    @property
    def is_small(self) -> bool:
        """Whether it has fewer than four bits a weight. Such a variant is chosen only if somebody names it."""
        return _SMALL_QUANTS.match(self.quant.upper()) is not None


class Entry(FrozenModel):
    """One model."""

    id: str = Field(pattern=_ID)
    parameters: str = ""
    """For people: `35B`."""
    active_parameters: str = ""
    """For a model with experts: the parameters that one token uses."""
    licence: str = ""
    """SPDX identifier, or the publisher's name of the licence; empty if unknown."""
    released: date | None = None
    context: int | None = Field(default=None, gt=0)
    """Tokens that the model was trained with; None if unknown."""
    capabilities: tuple[Capability, ...] = ("chat",)
    template: Literal["gguf"] = "gguf"
    """Where the chat template is: in the file's header."""
    header: GgufFacts | None = None
    """The numbers of the file's header that the memory depends on; None if they are unknown."""
    unchecked: tuple[str, ...] = ()
    """The numbers that no source confirms yet: `header` for all of it, or `header.NAME`."""
    variants: tuple[Variant, ...] = Field(min_length=1)

    @model_validator(mode="after")
    def _unchecked_numbers_exist(self) -> Entry:
        known = self.header.model_dump(exclude_defaults=True) if self.header else {}
        for name in self.unchecked:
            if not known or name not in ("header", *(f"header.{each}" for each in known)):
                raise ValueError(f"`unchecked` names `{name}`, which the entry does not have")
        return self

    @model_validator(mode="after")
    def _each_quant_once(self) -> Entry:
        names = [variant.quant.lower() for variant in self.variants]
        if len(set(names)) < len(names):
            raise ValueError("two variants have the same `quant`")
        return self

    @property
    def default_name(self) -> str:
        """The name of the service and its Model if nobody names one: a DNS label."""
        return service_dns_name(self.id)

    @property
    def by_size(self) -> tuple[Variant, ...]:
        """The variants, the largest first."""
        return tuple(sorted(self.variants, key=lambda variant: -variant.bytes))

    def variant(self, quant: str) -> Variant:
        """Return a variant by its name, in any case. Raises UnknownVariant."""
        for each in self.variants:
            if each.quant.lower() == quant.lower():
                return each
        raise UnknownVariant(self, quant)


class Catalog(FrozenModel):
    """All models of one catalog."""

    version: Literal[1]
    models: Annotated[tuple[Entry, ...], Field(min_length=1)]

    @model_validator(mode="after")
    def _each_id_once(self) -> Catalog:
        seen: set[str] = set()
        for entry in self.models:
            if entry.id in seen:
                raise ValueError(f"two models have the id `{entry.id}`")
            seen.add(entry.id)
        return self

    def entry(self, model_id: str) -> Entry:
        """Return a model by its id, in any case. Raises UnknownModel."""
        for each in self.models:
            if each.id == model_id.lower():
                return each
        raise UnknownModel(model_id, self.near(model_id))

    def near(self, model_id: str) -> tuple[str, ...]:
        """Return similar ids, the most similar first."""
        known, asked = [entry.id for entry in self.models], model_id[:100].lower()
        # `qwen3.5` means its sizes, which a comparison of whole words finds less similar than `qwen3-8b`.
        longer = [each for each in known if asked and each.startswith(asked)]
        similar = difflib.get_close_matches(asked, known, NEAR_IDS, cutoff=0.5)
        return tuple(dict.fromkeys([*longer, *similar]))[:NEAR_IDS]


class CatalogError(Exception):
    """A request to the catalog that cannot be met. The message says what is wrong, `hint` what to do."""

    def __init__(self, message: str, *, hint: str = "") -> None:
        super().__init__(message)
        self.hint = hint


class UnknownModel(CatalogError):
    """The catalog has no model with this id."""

    def __init__(self, model_id: str, near: tuple[str, ...]) -> None:
        self.near = near
        listed = "`herdsman catalog list` shows all models"
        super().__init__(
            f"the catalog has no model `{model_id[:100]}`",
            hint=f"did you mean {_either(near)}? {listed}" if near else listed,
        )


class UnknownVariant(CatalogError):
    """The model has no variant with this quantisation."""

    def __init__(self, entry: Entry, quant: str) -> None:
        known = ", ".join(variant.quant for variant in entry.by_size)
        super().__init__(
            f"model `{entry.id}` has no variant `{quant[:100]}`",
            hint=f"the catalog has {known}; for any other file give its address instead of an id",
        )


def _either(names: tuple[str, ...]) -> str:
    quoted = [f"`{name}`" for name in names]
    return quoted[0] if len(quoted) == 1 else f"{', '.join(quoted[:-1])} or {quoted[-1]}"
