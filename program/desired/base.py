"""The frozen base of every desired-state model, and the JSON types that Kubernetes structures pass through as."""

from __future__ import annotations

from pydantic import BaseModel, ConfigDict

# A Kubernetes structure that Herdsman carries through unread (a toleration, a probe, a security context). The API
# server has validated it against the CRD's schema, and validates it again in the object it ends up in.


class FrozenModel(BaseModel):
    """A value of the desired state: immutable, compared by content, with no field beyond the declared ones."""

    model_config = ConfigDict(frozen=True, extra="forbid")
