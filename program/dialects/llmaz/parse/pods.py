"""Completes pod templates: containers that fetch models, volumes, labels, and the flavor's hardware. Pure.

Herdsman builds the template of a Playground; the user writes that of a Service.
"""

from __future__ import annotations

import copy
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

from kubeapi.json_types import Json
from program.desired.facts import Problem, unsupported_field
from program.desired.keys import is_label_value
from program.dialects.llmaz.naming import (
    ANNOTATION_FLAVORS,
    LABEL_FAMILY,
    LABEL_MODEL,
    MODEL_VOLUME,
    MODELS,
    RUNNER,
    loader_name,
)
from program.dialects.llmaz.parse.flavors import Choice, with_affinity
from program.dialects.llmaz.parse.models import Model
from program.dialects.llmaz.parse.runtimes import with_limits
from program.dialects.llmaz.parse.source import Source
from program.dialects.llmaz.settings import GlobalConfig


@dataclass(frozen=True)
class PodPlan:
    """The additions to every pod of a service."""

    models: tuple[Model, ...]
    """The main one first."""
    choice: Choice
    labels: dict[str, str]
    """Herdsman's labels, by which it finds the pods."""
    settings: GlobalConfig
    fetched: bool = True
    """False: the engine fetches its model itself."""
    counted: bool = False
    """Build the templates that hashes are computed from: with default settings, and the loaders' first variables."""


def counted(template: Json, plan: PodPlan) -> Json:
    """Return the template that hashes are computed from, so that an edit of the settings does not change the service.

    Running pods keep the settings with which they were created (docs/adr/0042).
    """
    return completed(template, replace(plan, settings=GlobalConfig(), counted=True))


def completed(template: Json, plan: PodPlan) -> Json:
    """Return a template with all additions of the plan. Values of the user have precedence."""
    metadata = dict(template.get("metadata") or {})
    labels = {**(metadata.get("labels") or {}), **_model_labels(plan), **plan.labels}
    annotations = dict(metadata.get("annotations") or {})
    if plan.choice.asked:
        annotations[ANNOTATION_FLAVORS] = ",".join(plan.choice.asked)
    metadata["labels"] = labels
    if annotations:
        metadata["annotations"] = annotations
    spec: Json = copy.deepcopy(template["spec"])
    if plan.settings.scheduler and not spec.get("schedulerName"):
        spec["schedulerName"] = plan.settings.scheduler
    runner = next((each for each in spec["containers"] if each["name"] == RUNNER), None)
    if runner is not None:
        runner["resources"] = with_limits(runner.get("resources") or {}, plan.choice.limits)
        if not runner["resources"]:
            del runner["resources"]
        _add_models(spec, runner, plan)
    return {"metadata": metadata, "spec": with_affinity(spec, plan.choice)}


def unlabelled(plan: PodPlan) -> Iterator[Problem]:
    """Yield values of the main model that cannot be labels, because the API server would refuse pods with them."""
    if not plan.models:
        return
    main = plan.models[0]
    for label, field, value in (
        (LABEL_MODEL, "metadata.name", main.name),
        (LABEL_FAMILY, "spec.familyName", main.family),
    ):
        if not is_label_value(value):
            yield unsupported_field(
                main.claim.field,
                f"OpenModel `{main.name[:64]}` {field} `{value[:64]}` is not valid as label {label}, so the pods do "
                f"not get this label; use at most 63 letters, digits, `-`, `_` and `.`",
            )


def _model_labels(plan: PodPlan) -> dict[str, str]:
    if not plan.models:
        return {}
    wanted = {LABEL_MODEL: plan.models[0].name, LABEL_FAMILY: plan.models[0].family}
    return {label: value for label, value in wanted.items() if is_label_value(value)}


def _add_models(spec: Json, runner: Json, plan: PodPlan) -> None:
    if not plan.fetched:
        for model in plan.models:
            _let_in(runner, model.source)
    elif any(model.source.loader is not None for model in plan.models):
        _add_loaders(spec, runner, plan)
        _add(spec, "volumes", {"name": MODEL_VOLUME, "emptyDir": {}})
        _add(runner, "volumeMounts", {"name": MODEL_VOLUME, "mountPath": MODELS, "readOnly": True})
    # The loader's volume keeps its name if there is one; a node's directory then gets another name.
    for index, model in enumerate(plan.models):
        if model.source.kind == "host":
            name = _free_name(spec, index)
            _add(spec, "volumes", {"name": name, "hostPath": {"path": model.source.host_path}})
            _add(runner, "volumeMounts", {"name": name, "mountPath": model.source.host_path, "readOnly": True})


def _add_loaders(spec: Json, runner: Json, plan: PodPlan) -> None:
    # Hashes count the variables of the first container, which may be a sidecar, as the first development version did.
    inherited = (spec["containers"][0] if plan.counted else runner).get("env") or []
    for index, model in enumerate(plan.models):
        if model.source.loader is None:
            continue
        loader = {
            "name": loader_name(index),
            "image": plan.settings.loader_image,
            "env": _loader_env(inherited, model.source),
            "volumeMounts": [{"name": MODEL_VOLUME, "mountPath": MODELS}],
        }
        _add(spec, "initContainers", loader)


def _loader_env(inherited: Sequence[Json], source: Source) -> list[Json]:
    """Return the loader's variables: the engine's, for proxies and tokens, and the model's; each name once."""
    told = list(source.loader or ())
    names = {variable["name"] for variable in told}
    kept = [dict(variable) for variable in inherited if variable["name"] not in names]
    names |= {variable["name"] for variable in kept}
    return [*kept, *told, *(dict(secret) for secret in source.credentials if secret["name"] not in names)]


def _let_in(runner: Json, source: Source) -> None:
    for secret in source.credentials:
        _add(runner, "env", dict(secret))


def _add(owner: Json, key: str, entry: Json) -> None:
    """Append to a list of named entries, unless the user has an entry of this name."""
    entries = list(owner.get(key) or ())
    taken = {each.get("mountPath" if key == "volumeMounts" else "name") for each in entries}
    if entry["mountPath" if key == "volumeMounts" else "name"] not in taken:
        owner[key] = [*entries, entry]


def _free_name(spec: Json, index: int) -> str:
    taken = {volume["name"] for volume in spec.get("volumes") or ()}
    return MODEL_VOLUME if MODEL_VOLUME not in taken else f"{MODEL_VOLUME}-{index}"
