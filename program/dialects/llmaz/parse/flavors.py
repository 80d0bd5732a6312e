"""Flavors of a model: the hardware that its pods may run on, the amounts that they request, the preferred flavor. Pure.

llmaz's scheduler plugin applies node selectors. Here node affinity has the same effect: pods may run on nodes of any
chosen flavor, and each flavor's weight is half of the weight before it, so that the order is strict.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from kubeapi.json_types import Json
from program.desired.errors import SpecInvalid
from program.desired.facts import Problem, unsupported_field
from program.dialects.llmaz.parse.models import Model
from program.dialects.llmaz.schema.model import Flavor

_HEAVIEST = 64
"""Weight of the first flavor. Halved six times it is 1. The eighth flavor, which is the last allowed, needs none."""


@dataclass(frozen=True)
class Choice:
    """The flavors of a service, the preferred one first; empty if the model has none."""

    flavors: tuple[Flavor, ...] = ()
    asked: tuple[str, ...] = ()
    """The flavors that the service names; empty if it uses all of the model."""

    @property
    def limits(self) -> dict[str, str]:
        """The amounts that each pod requests: those of the first flavor, since a pod cannot request alternatives."""
        return {name: str(value) for name, value in self.flavors[0].limits.items()} if self.flavors else {}

    @property
    def params(self) -> dict[str, str]:
        """Parameters of the first flavor, which arguments may use."""
        return dict(self.flavors[0].params) if self.flavors else {}


def choose(model: Model, asked: Sequence[str], *, field: str) -> Choice:
    """Choose the flavors of the main model. Raises SpecInvalid for one that it does not have."""
    # If two flavors have one name, the first counts, as it does without a choice.
    known = {flavor.name: flavor for flavor in reversed(model.flavors)}
    for index, name in enumerate(asked):
        if name not in known:
            has = f"it has {', '.join(flavor.name for flavor in model.flavors)}" if known else "it has none"
            raise SpecInvalid(
                field=f"{field}[{index}]", why=f"OpenModel `{model.name}` has no flavor `{name[:64]}`; {has}"
            )
    if not asked:
        return Choice(model.flavors)
    return Choice(tuple(known[name] for name in dict.fromkeys(asked)), tuple(asked))


def with_affinity(spec: Json, choice: Choice) -> Json:
    """Return a pod spec with affinity to the nodes of the chosen flavors, in addition to the user's affinity."""
    # A flavor without a selector may run on any node. Then the selectors of the other flavors are not required either.
    anywhere = any(not flavor.node_selector for flavor in choice.flavors)
    required = [] if anywhere else [_term(flavor.node_selector) for flavor in choice.flavors]
    preferred = list(_preferences(choice.flavors))
    if not required and not preferred:
        return spec
    affinity: dict[str, Any] = dict(spec.get("affinity") or {})
    node: dict[str, Any] = dict(affinity.get("nodeAffinity") or {})
    if required:
        selector = dict(node.get("requiredDuringSchedulingIgnoredDuringExecution") or {})
        users = list(selector.get("nodeSelectorTerms") or ())
        node["requiredDuringSchedulingIgnoredDuringExecution"] = {"nodeSelectorTerms": _both(users, required)}
    if preferred:
        kept = list(node.get("preferredDuringSchedulingIgnoredDuringExecution") or ())
        node["preferredDuringSchedulingIgnoredDuringExecution"] = [*kept, *preferred]
    return {**spec, "affinity": {**affinity, "nodeAffinity": node}}


def lost_of(model: Model, choice: Choice, arguments: Sequence[str]) -> Iterator[Problem]:
    """Yield the parts of flavors without an effect: limits of all flavors except the first, and unused parameters."""
    where = f"OpenModel `{model.name}` spec.inferenceConfig.flavors"
    for flavor in choice.flavors[1:]:
        if flavor.limits and {name: str(value) for name, value in flavor.limits.items()} != choice.limits:
            yield unsupported_field(
                model.claim.field,
                f"{where}[{flavor.name}].limits have no effect: pods request those of the first flavor, "
                f"`{choice.flavors[0].name}`, on whichever node they run",
            )
    text = " ".join(arguments)
    for name, flags in _PARALLELISM.items():
        value = choice.params.get(name, "1")
        if value != "1" and not any(flag in text for flag in (f".{name} ", f".{name}}}", *flags)):
            yield unsupported_field(
                model.claim.field,
                f"{where}[{choice.flavors[0].name}].params.{name}={value[:16]} has no effect, because no argument "
                f"uses it; add `{flags[0]}` (the args of a BackendRuntime may contain `{{{{ .{name} }}}}`)",
            )


_PARALLELISM: dict[str, tuple[str, ...]] = {
    "TP": ("--tensor-parallel-size", "--tensor_parallel_size", "-tp ", "--tp", "--tp_size", "--num-shard"),
    "PP": ("--pipeline-parallel-size", "--pipeline_parallel_size", "-pp ", "--pp", "--pp_size"),
}
"""Parameters for parallelism, with the flags of the engines."""


def _term(selector: Mapping[str, str]) -> Json:
    return {"matchExpressions": [{"key": key, "operator": "In", "values": [selector[key]]} for key in sorted(selector)]}


def _preferences(flavors: Sequence[Flavor]) -> Iterator[Json]:
    if len(flavors) < 2:
        return
    for index, flavor in enumerate(flavors):
        weight = _HEAVIEST >> index
        # If all flavors are required, the last one needs no weight: it remains when no other fits.
        if weight and flavor.node_selector and index < len(flavors) - 1:
            yield {"weight": weight, "preference": _term(flavor.node_selector)}


def _both(users: Sequence[Json], ours: Sequence[Json]) -> list[Json]:
    """Require one of the user's terms and one of Herdsman's: terms are alternatives; the expressions of a term are
    combined.
    """
    if not users:
        return list(ours)
    joined = []
    for theirs in users:
        for term in ours:
            expressions = [*(theirs.get("matchExpressions") or ()), *term["matchExpressions"]]
            joined.append({**theirs, "matchExpressions": expressions})
    return joined
