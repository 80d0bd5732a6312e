"""How an LLMInferenceService becomes one complete spec: presets, base configs and its own spec, merged and rendered."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from program.desired.base import JsonObject
from program.dialects.dialect import Lookup
from program.dialects.kserve.settings import Settings


@dataclass(frozen=True)
class AppliedConfig:
    """One config that went into a service, as `status.appliedConfigs` tells it."""

    name: str
    namespace: str
    source: Literal["Preset", "UserRef"]


@dataclass(frozen=True)
class Combined:
    """A service, complete. Nobody changes the JSON in it: parts of it are shared between services."""

    spec: JsonObject
    """The merged and rendered LLMInferenceServiceSpec."""
    own: JsonObject
    """The service's own spec with its defaults: `model.name`."""
    applied: tuple[AppliedConfig, ...]
    settings: Settings
    pins: dict[str, str]
    """`status.annotations`: which presets the service keeps."""
    model_name: str


def combined(cr: JsonObject, look: Lookup) -> Combined:
    """Merge and render all that a service consists of.

    Raises SpecInvalid with reason ConfigNotFound, CombineBaseError or InvalidRenderedConfig.
    """
    raise NotImplementedError
