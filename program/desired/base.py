"""The frozen base class of all desired-state models."""

from __future__ import annotations

from pydantic import BaseModel, ConfigDict


class FrozenModel(BaseModel):
    """A value of the desired state: immutable, compared by content, without undeclared fields."""

    model_config = ConfigDict(frozen=True, extra="forbid")
