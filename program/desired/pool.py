"""A pool of services that use the same GPUs by turns, as a dialect reads it from a custom resource. Pure."""

from __future__ import annotations

from dataclasses import dataclass, field


@dataclass(frozen=True)
class Pool:
    """The members of a pool and the times of their turns."""

    namespace: str
    name: str
    members: tuple[str, ...]
    """Names of InferenceServices of the namespace, each once, in the order of the spec."""
    default: str = ""
    """The member that starts if no member runs and no request waits; empty for none."""
    min_turn_s: float = 60.0
    """The shortest time that a member serves before another one gets its turn."""
    hold_s: float = 300.0
    """How long a request may wait for the turn of its member."""
    gpus: int = 1
    """GPUs that the members share. Only checked against the requests of the members."""
    node_labels: dict[str, str] = field(default_factory=dict)
    """Labels of the nodes with the GPUs. Only checked against the selectors of the members."""
