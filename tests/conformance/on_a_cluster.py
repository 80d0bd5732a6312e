"""A cluster and a loop for the vectors of a dialect, and comparisons of the results with the recordings.

`test_kserve_on_the_api_server` and `test_llmaz_on_the_api_server` use it.
"""

from __future__ import annotations

import contextlib
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import astuple
from pathlib import Path

import psutil

from kubeapi import kinds
from kubeapi.client import KubeClient
from kubeapi.errors import ApiError
from kubeapi.json_types import Json
from kubeapi.kinds import Kind
from tests.conformance.comparison import Difference
from tests.conformance.dialect_replay import DialectReplay, Replayed, Stage
from tests.conformance.families import as_text, compare, compare_status, corrections_of, status_corrections_of
from tests.conformance.vectors import Recorded, Vector
from tests.support import controlplane, dialects, extensions
from tests.support.loop import LoopProcess, eventually, grant_loop_rights, install_crds


@contextlib.contextmanager
def replaying(family: str, directory: Path) -> Iterator[DialectReplay]:
    """Run a control plane with the CRDs of a dialect and of its dependencies, and a loop with the documented rights."""
    with controlplane.running(("etcd", "kube-apiserver")) as cluster:
        client = KubeClient.from_kubeconfig(str(cluster.kubeconfig))
        try:
            install_crds(client)
            dialects.install(client, family)
            dialects.install_needed(client)
            kubeconfig = grant_loop_rights(client, cluster, directory / "kubeconfig")
            environment = {"HERDSMAN_CONVERSION_PORT": "0"} if family == "kserve" else {}
            # Models of some vectors are in this directory of a node.
            roots = ("--allowed-host-path-roots=/srv/weights",) if family == "llmaz" else ()
            with running_loop(kubeconfig, directory, environment, *roots) as loop:
                if family == "kserve":
                    older = Kind("serving.kserve.io/v1alpha1", *astuple(kinds.LLM_SERVICES)[1:])
                    eventually(lambda: extensions.is_served(client, older), what="the older version to be served")
                yield DialectReplay(client, family, lambda: is_idle(loop))
        finally:
            client.close()


@contextlib.contextmanager
def running_loop(
    kubeconfig: Path, directory: Path, environment: dict[str, str], *options: str
) -> Iterator[LoopProcess]:
    """Run a loop with the given environment and options while the block lasts."""
    loop = LoopProcess(kubeconfig, directory, options, environment=environment)
    try:
        yield loop.start()
    finally:
        if loop.poll() is None:
            loop.stop()


def is_idle(loop: LoopProcess) -> bool:
    """Return whether the loop runs no engine.

    A run has the directory of its stack; the CLI that waits for a run does not.
    """
    with contextlib.suppress(psutil.Error):  # a child process ended during the check
        engines = [child for child in psutil.Process(loop.pid).children() if "pulumi" in child.name()]
        return not any("stacks" in Path(engine.cwd()).parts for engine in engines)
    return False


def stages(vector: Vector, result: Replayed) -> Iterator[tuple[Recorded, Stage]]:
    """Pair each recorded stage with the objects of the replay, after the input and after each step."""
    yield from zip(vector.stages(), result.stages, strict=True)


def differing_objects(vector: Vector, result: Replayed, admission: Mapping[str, set[str]]) -> str:
    """Describe the objects that differ from the recorded ones; an empty text if none does.

    `admission` holds the corrections that `differing_refusals` gets. Objects of services that only Herdsman accepts
    are left out.
    """
    found = []
    only_ours = {name.partition("/")[2] for name, fields in admission.items() if name in vector.rejected and not fields}
    for recorded, stage in stages(vector, result):
        objects = [thing for thing in stage.objects if not only_ours & owners(thing)]
        corrections = corrections_of(vector, recorded.prefix)
        found.append(
            (
                recorded.prefix,
                compare(vector.family, vector, recorded.objects, objects, corrections, recorded.prefix),
            )
        )
    return _told(found)


def owners(thing: Json) -> set[str]:
    """Return the names of an object's owners."""
    return {owner["name"] for owner in thing["metadata"].get("ownerReferences") or ()}


def differing_statuses(vector: Vector, result: Replayed) -> str:
    """Describe the statuses that differ from the recorded ones; an empty text if none does."""
    found = []
    for recorded, stage in stages(vector, result):
        mine = {name: status for name, status in stage.statuses.items() if name in recorded.statuses}
        corrections = status_corrections_of(vector, recorded.prefix)
        found.append(
            (
                recorded.prefix,
                compare_status(vector.family, vector, recorded.statuses, mine, corrections, recorded.prefix),
            )
        )
    return _told(found)


def _told(found: Sequence[tuple[str, list[Difference]]]) -> str:
    return "\n".join(f"{prefix or 'input'}\n{as_text(differences)}" for prefix, differences in found if differences)


# --- Refusals ---------------------------------------------------------------------------------------------------------


def differing_refusals(vector: Vector, result: Replayed, corrections: Mapping[str, set[str]]) -> list[str]:
    """Describe the manifests whose response differs from the peer's.

    If the peer's webhook refuses a manifest, Herdsman's schema must refuse it too, or the loop must stop the service
    with a condition that names the field. The named field may be the recorded one, a part of it, or a parent of it.
    `corrections` give other fields for `Kind/name` (`step2:Kind/name`); an empty set means that the object must be
    accepted and must not be stopped.
    """
    expected = {name: _fields_of(entry) for name, entry in vector.rejected.items()}
    expected.update({name: fields for name, fields in corrections.items() if not name.startswith("step")})
    wrong = []
    for name, fields in sorted(expected.items()):
        refusal, status = result.refusals.get(name), result.stages[0].statuses.get(name) or {}
        if not _as_expected(refusal, status, fields):
            wrong.append(f"{name}: {_answer(refusal, status)}; expected to name {sorted(fields)}")
    wrong += [f"{name}: {refusal}" for name, refusal in result.refusals.items() if name not in expected]
    for recorded, stage in stages(vector, result):
        if recorded.admission is not None:
            name = recorded.admission["object"]
            status = stage.statuses.get(name) or {}
            fields = _fields_of(recorded.admission)
            fields = corrections.get(recorded.prefix + name, fields)
            if not _as_expected(stage.answer, status, fields):
                said = _answer(stage.answer, status)
                wrong.append(f"{recorded.prefix}{name}: {said}; expected to name {sorted(fields)}")
        elif stage.answer is not None:
            wrong.append(f"{recorded.prefix} {stage.answer}")
    return wrong


def stopped(status: Json) -> str:
    """Return the message of the condition `Stalled` while it is True, else an empty text."""
    for condition in status.get("conditions", ()):
        if condition["type"] == "Stalled" and condition["status"] == "True":
            return str(condition["message"])
    return ""


def _fields_of(entry: Json) -> set[str]:
    # A refusal without causes counts as one with the cause `<nil>`, which means that other rules were not checked.
    return {cause["field"] for cause in entry.get("causes") or ({"field": "<nil>"},)}


def _answer(refusal: ApiError | None, status: Json) -> str:
    return str(refusal or stopped(status) or "let in")


def _as_expected(refusal: ApiError | None, status: Json, fields: set[str]) -> bool:
    """Return whether an object was refused or stopped because of one of `fields`; without fields, whether it works."""
    if not fields:
        return refusal is None and not stopped(status)
    named = set(re.findall(r"\b(?:spec|metadata)(?:\.[A-Za-z0-9-]+|\[[^]]*\])*", stopped(status)))
    if refusal is not None:
        assert refusal.status in (400, 403, 422), refusal
        named = {cause.field for cause in refusal.causes} or {str(refusal)}
    wanted = {_plain(field) for field in fields if field[:1] not in ("<", ".")}
    found = {_plain(field) for field in named if field[:1] not in ("<", ".")}
    if not wanted:
        return bool(refusal or named)
    return any(_answers(one, other) for one in wanted for other in found)


def _plain(field: str) -> tuple[str, ...]:
    return tuple(part for part in re.split(r"[.\[\]]", field) if part and not part.isdigit())


def _answers(wanted: tuple[str, ...], found: tuple[str, ...]) -> bool:
    """Return whether a refusal at `found` matches one at `wanted`: the fields are equal, or one is a part of the other.

    A whole `spec` or `metadata` matches only itself, since it contains every field.
    """
    if found == wanted:
        return True
    return min(len(found), len(wanted)) > 1 and (_nested(wanted, found) or _nested(found, wanted))


def _nested(outer: tuple[str, ...], inner: tuple[str, ...]) -> bool:
    return inner[: len(outer)] == outer
