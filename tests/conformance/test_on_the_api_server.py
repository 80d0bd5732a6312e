"""All vectors of LLMKube on a real API server, with the real loop and the real engine: objects, statuses, refusals.

One `herdsman run` with the rights of docs/install/rbac.yaml plays them at the same time, each in a separate namespace.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from kubeapi.client import KubeClient
from kubeapi.errors import ApiError
from tests.conformance import corrections
from tests.conformance.comparison import as_text, compare_flat, flatten_all, flatten_status
from tests.conformance.llmkube_rules import corrections_of
from tests.conformance.on_a_cluster import is_idle
from tests.conformance.replay import FIXTURE_PORT, LOCAL_MODELS, Replay, Replayed, Stage, fixture_server, local_models
from tests.conformance.vectors import Vector, all_vectors
from tests.support import controlplane
from tests.support.loop import grant_loop_rights, install_crds, loop_process

pytestmark = pytest.mark.soak

VECTORS = all_vectors()


@pytest.fixture(scope="module")
def no_local_models() -> Iterator[str]:
    with local_models() as why_not:
        yield why_not


@pytest.fixture(scope="module")
def replayed(
    pulumi_cli: Path, no_local_models: str, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[dict[str, Replayed]]:
    directory = tmp_path_factory.mktemp("conformance")
    try:
        fixtures = fixture_server()
        fixtures.__enter__()
    except OSError as error:
        pytest.skip(f"port {FIXTURE_PORT}, which the vectors name, cannot be used: {error.strerror}")
    try:
        with controlplane.running(("etcd", "kube-apiserver")) as cluster:
            client = KubeClient.from_kubeconfig(str(cluster.kubeconfig))
            install_crds(client)
            kubeconfig = grant_loop_rights(client, cluster, directory / "kubeconfig")
            with loop_process(kubeconfig, directory, f"--allowed-host-path-roots={LOCAL_MODELS}") as loop:
                yield Replay(client, VECTORS, lambda: is_idle(loop)).run()
            client.close()
    finally:
        fixtures.__exit__(None, None, None)


def play(vector: Vector, replayed: dict[str, Replayed], no_local_models: str) -> Replayed:
    if vector.needs_local_files() and no_local_models:
        pytest.skip(no_local_models)
    return replayed[vector.name]


def stages(vector: Vector, result: Replayed) -> Iterator[tuple[str, Stage, dict[str, object]]]:
    """Yield after the input and after each step: the prefix of its paths, the replayed stage, the recorded output."""
    yield "", result.stages[0], vector.raw["output"]
    for number, step in enumerate(vector.steps, start=1):
        yield f"step{number}:", result.stages[number], step["output"]


@pytest.mark.parametrize("vector", VECTORS, ids=lambda vector: vector.name)
def test_the_objects_are_as_recorded(vector: Vector, replayed: dict[str, Replayed], no_local_models: str) -> None:
    result = play(vector, replayed, no_local_models)
    for prefix, stage, recorded in stages(vector, result):
        expected, actual = flatten_all(recorded["objects"]), flatten_all(stage.objects)
        right = corrections_of(vector, expected, prefix)
        differences = compare_flat(expected, actual, vector.defects, right, prefix=prefix)
        assert not differences, f"{prefix}\n{as_text(differences)}"


@pytest.mark.parametrize("vector", VECTORS, ids=lambda vector: vector.name)
def test_the_statuses_are_as_recorded(vector: Vector, replayed: dict[str, Replayed], no_local_models: str) -> None:
    result = play(vector, replayed, no_local_models)
    for prefix, stage, recorded in stages(vector, result):
        differences = compare_flat(
            flatten_status(recorded["status"]),
            flatten_status(stage.statuses),
            vector.defects,
            corrections.statuses(vector, prefix),
            prefix=prefix,
        )
        assert not differences, f"{prefix}\n{as_text(differences)}"


@pytest.mark.parametrize("vector", VECTORS, ids=lambda vector: vector.name)
def test_the_same_manifests_are_refused_for_the_same_fields(
    vector: Vector, replayed: dict[str, Replayed], no_local_models: str
) -> None:
    result = play(vector, replayed, no_local_models)
    expected = {name: _fields_recorded(entry) for name, entry in vector.rejected.items()}
    expected |= corrections.refusals(vector)
    expected = {name: fields for name, fields in expected.items() if fields}
    assert {name: _fields(refusal) for name, refusal in result.refusals.items()} == expected
    for number, step in enumerate(vector.steps, start=1):
        answer = result.stages[number].answer
        wanted = _fields_recorded(step["admission"]) if "admission" in step else set()
        assert (_fields(answer) if answer else set()) == wanted, f"step{number}"


def _fields(refusal: ApiError) -> set[str]:
    assert refusal.status == 422, refusal
    return {cause.field for cause in refusal.causes if cause.field[:1] not in ("<", ".")}


def _fields_recorded(entry: dict[str, list[dict[str, str]]]) -> set[str]:
    # A cause `<nil>` means that other rules were not checked. `.spec.replicas` is the scale subresource's name for a
    # field that the list already has.
    return {cause["field"] for cause in entry["causes"] if cause["field"][:1] not in ("<", ".")}
