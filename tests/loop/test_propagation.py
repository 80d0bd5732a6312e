"""A service is deleted with each of the three propagation policies, by the real garbage collector, in every dialect.

`kubectl delete --cascade=orphan`, `foreground` and `background` are requests with a propagation policy.
"""

from __future__ import annotations

import contextlib
import json
from collections.abc import Iterator
from pathlib import Path

import pytest

from automation.history import revision
from kubeapi import kinds
from kubeapi.client import KubeClient
from kubeapi.errors import Invalid
from kubeapi.json_types import Json
from kubeapi.kinds import Kind
from program.desired.keys import ServiceKey
from tests.loop.test_dialects import grouped, inferring, playing, put, runtimes
from tests.support import dialects, loop, peer_crds
from tests.support.controlplane import Api
from tests.support.loop import LoopProcess, eventually, find
from tools.localcluster import LocalCluster

pytestmark = pytest.mark.soak

Made = dict[tuple[Kind, str], str]
"""Objects by kind and name, with their uids."""

SERVICES: dict[str, tuple[Kind, str]] = {
    "llmkube": (kinds.INFERENCE_SERVICES, "svc"),
    "kserve": (kinds.LLM_SERVICES, "svc-kserve"),
    "llmaz": (kinds.PLAYGROUNDS, "svc"),
    "llmaz-service": (kinds.LLMAZ_SERVICES, "svc"),
}
"""By dialect: the kind of a service `svc`, and the name of its Deployment or LeaderWorkerSet."""
WORKLOAD = {"llmaz-service": kinds.LEADER_WORKER_SETS}
MADE = (
    *(kinds.DEPLOYMENTS, kinds.LEADER_WORKER_SETS, kinds.SERVICES, kinds.CONTROLLER_REVISIONS, kinds.NETWORK_POLICIES),
    *(kinds.HTTP_ROUTES, kinds.INFERENCE_POOLS, kinds.DISRUPTION_BUDGETS),
)
SOON_S = 60.0
HOLD = "tests.example/hold"
STAYS_S = 5.0


@pytest.fixture(scope="module")
def kubeconfig(own_client: KubeClient, own_cluster: LocalCluster, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The kubeconfig of the loop, on a cluster with the CRDs of all dialects."""
    loop.install_crds(own_client)
    path = loop.grant_loop_rights(own_client, own_cluster, tmp_path_factory.mktemp("kubeconfig") / "kubeconfig")
    for family in ("kserve", "llmaz"):
        dialects.install(own_client, family)
    dialects.install_needed(own_client, peer_crds.ALL)
    runtimes(own_client)
    priority = {"apiVersion": "scheduling.k8s.io/v1", "kind": "PriorityClass", "metadata": {"name": "llmkube-normal"}}
    own_client.create(kinds.PRIORITY_CLASSES, None, {**priority, "value": 1000})
    return path


@pytest.fixture(scope="module")
def running(kubeconfig: Path, pulumi_cli: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[LoopProcess]:
    with loop.loop_process(kubeconfig, tmp_path_factory.mktemp("loop")) as process:
        yield process


@pytest.fixture
def place(own_client: KubeClient, request: pytest.FixtureRequest) -> Iterator[str]:
    """A namespace of one test, with a Model."""
    name = request.node.name.replace("_", "-").replace("[", "-").rstrip("]")[-40:].strip("-")
    own_client.create(kinds.NAMESPACES, None, {"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": name}})
    loop.model(own_client, name)
    yield name
    own_client.delete(kinds.NAMESPACES, None, name)


def serve(client: KubeClient, place: str, dialect: str) -> Made:
    """Create a service and wait for its objects, its first revision included."""
    kind, workload = SERVICES[dialect]
    if dialect == "llmkube":
        loop.service(client, place, runtime="vllm", skipModelInit=True)
    else:
        specs = {"kserve": inferring(router={"route": {}}), "llmaz": playing(), "llmaz-service": grouped()}
        put(client, kind, place, "svc", specs[dialect])
    first = revision.name_of(ServiceKey(dialect, place, "svc"), 1)
    for of, name in ((WORKLOAD.get(dialect, kinds.DEPLOYMENTS), workload), (kinds.CONTROLLER_REVISIONS, first)):
        eventually(
            lambda of=of, name=name: find(client, of, place, name),  # type: ignore[misc]
            what=f"{of.kind} {name}",
            timeout_s=SOON_S,
        )
    return made(client, place, client.get(kind, place, "svc")["metadata"]["uid"])


def made(client: KubeClient, place: str, owner: str) -> Made:
    return {
        (kind, obj["metadata"]["name"]): obj["metadata"]["uid"]
        for kind in MADE
        for obj in client.list(kind, place)["items"]
        if any(each["uid"] == owner for each in obj["metadata"].get("ownerReferences") or ())
    }


def delete(client: KubeClient, place: str, dialect: str, policy: str) -> None:
    client.delete(SERVICES[dialect][0], place, "svc", propagation=policy)


def await_gone(client: KubeClient, place: str, dialect: str) -> None:
    kind = SERVICES[dialect][0]
    eventually(lambda: find(client, kind, place, "svc") is None, what=f"{kind.kind} to be gone", timeout_s=SOON_S)


def await_objects_gone(client: KubeClient, place: str, before: Made) -> None:
    def left() -> list[str]:
        return [f"{kind.kind} {name}" for kind, name in before if find(client, kind, place, name) is not None]

    eventually(lambda: not left(), what="all that was made to be gone", timeout_s=SOON_S)


def in_state(process: LoopProcess, place: str) -> set[str]:
    """The types of the objects that the stack's state holds."""
    path = next((process.state / ".pulumi" / "stacks").rglob(f"{place}.json"), None)
    if path is None:
        return set()
    try:
        resources = (json.loads(path.read_text())["checkpoint"].get("latest") or {}).get("resources") or ()
    except ValueError:
        return {"being written"}
    return {each["type"] for each in resources if each["type"].startswith("kubernetes:")}


def await_forgotten(process: LoopProcess, place: str) -> None:
    eventually(lambda: not in_state(process, place), what="a state that holds nothing", timeout_s=SOON_S)


def assert_kept(client: KubeClient, place: str, before: Made) -> None:
    """Assert for STAYS_S that every object is the same one, has no owner and is not being deleted."""

    def kept() -> bool:
        for (kind, name), uid in before.items():
            obj = find(client, kind, place, name)
            assert obj is not None, f"{kind.kind} {name} is gone"
            assert obj["metadata"]["uid"] == uid and "deletionTimestamp" not in obj["metadata"], f"{kind.kind} {name}"
            assert not obj["metadata"].get("ownerReferences"), f"{kind.kind} {name}"
        return False

    with pytest.raises(AssertionError, match="the last look gave False"):
        eventually(kept, what="a change, which does not come", timeout_s=STAYS_S)


def pods(client: KubeClient, place: str) -> set[str]:
    return {pod["metadata"]["uid"] for pod in client.list(kinds.PODS, place)["items"]}


@pytest.mark.parametrize("dialect", SERVICES)
def test_orphan_keeps_all_objects_and_the_state_forgets_them(
    own_client: KubeClient, running: LoopProcess, place: str, dialect: str
) -> None:
    before = serve(own_client, place, dialect)
    if dialect != "llmaz-service":  # no controller of LeaderWorkerSets runs here
        eventually(lambda: pods(own_client, place), what="a pod")
    serving = pods(own_client, place)
    delete(own_client, place, dialect, "Orphan")
    await_gone(own_client, place, dialect)
    await_forgotten(running, place)
    assert_kept(own_client, place, before)
    assert pods(own_client, place) == serving

    # A service of the same name takes the objects again, as they are.
    serve(own_client, place, dialect)
    owner = own_client.get(SERVICES[dialect][0], place, "svc")["metadata"]["uid"]
    kept = {at: uid for at, uid in before.items() if at[0] is not kinds.CONTROLLER_REVISIONS}
    eventually(
        lambda: kept.items() <= made(own_client, place, owner).items(), what="the objects to be the new service's"
    )
    assert pods(own_client, place) == serving


@pytest.mark.parametrize("dialect", SERVICES)
def test_foreground_ends_the_service_after_its_objects(
    own_client: KubeClient, running: LoopProcess, place: str, dialect: str
) -> None:
    before = serve(own_client, place, dialect)
    kind, workload = SERVICES[dialect]
    of = WORKLOAD.get(dialect, kinds.DEPLOYMENTS)
    own_client.patch(of, place, workload, {"metadata": {"finalizers": [HOLD]}})
    delete(own_client, place, dialect, "Foreground")

    def finalizers() -> list[str]:
        return own_client.get(of, place, workload)["metadata"].get("finalizers") or []

    eventually(
        lambda: "deletionTimestamp" in own_client.get(of, place, workload)["metadata"], what=f"{of.kind} to be ending"
    )
    others = {at: uid for at, uid in before.items() if at != (of, workload)}
    await_objects_gone(own_client, place, others)
    assert find(own_client, kind, place, "svc") is not None, "it waits for the objects that it owns"

    def release() -> bool:
        left = [name for name in finalizers() if name != HOLD]
        with contextlib.suppress(Invalid):  # the garbage collector has removed its finalizer meanwhile
            own_client.patch(of, place, workload, {"metadata": {"finalizers": left or None}})
            return True
        return False

    eventually(release, what=f"the finalizer of the test to be off the {of.kind}")
    await_gone(own_client, place, dialect)
    await_objects_gone(own_client, place, before)
    await_forgotten(running, place)


@pytest.mark.parametrize("dialect", SERVICES)
def test_background_ends_the_service_at_once_and_its_objects_after_it(
    own_client: KubeClient, running: LoopProcess, place: str, dialect: str
) -> None:
    before = serve(own_client, place, dialect)
    delete(own_client, place, dialect, "Background")
    assert find(own_client, SERVICES[dialect][0], place, "svc") is None
    await_objects_gone(own_client, place, before)
    await_forgotten(running, place)


def test_orphaned_objects_stay_when_no_loop_worked_meanwhile(
    own_client: KubeClient, kubeconfig: Path, pulumi_cli: Path, place: str, tmp_path: Path
) -> None:
    with loop.loop_process(kubeconfig, tmp_path / "loop", f"--namespace={place}", "--no-leader-elect") as process:
        before = serve(own_client, place, "llmkube")
        process.stop()
        delete(own_client, place, "llmkube", "Orphan")
        await_gone(own_client, place, "llmkube")
        process.start()
        await_forgotten(process, place)
        assert_kept(own_client, place, before)


def test_revisions_of_earlier_releases_are_renewed_so_that_their_service_can_be_orphaned(
    own_client: KubeClient, own_cluster: LocalCluster, kubeconfig: Path, pulumi_cli: Path, place: str, tmp_path: Path
) -> None:
    with loop.loop_process(kubeconfig, tmp_path / "loop", f"--namespace={place}", "--no-leader-elect") as process:
        serve(own_client, place, "llmkube")
        process.stop()
        written = own_client.get(kinds.CONTROLLER_REVISIONS, place, "svc-v1")
        own_client.delete(kinds.CONTROLLER_REVISIONS, place, "svc-v1")
        old = as_earlier_releases_wrote_it(written)
        path = kinds.CONTROLLER_REVISIONS.path(place)
        recorded = Api(own_cluster).create(path, old)
        process.start()

        def renewed() -> Json | None:
            found = find(own_client, kinds.CONTROLLER_REVISIONS, place, "svc-v1")
            return found if found and found["metadata"]["uid"] != recorded["metadata"]["uid"] else None

        found = eventually(renewed, what="the revision to be renewed")
        assert found is not None
        now, was = revision.read(found), revision.read(recorded)
        assert now is not None and now == was, "its number, data and time are the same"
        delete(own_client, place, "llmkube", "Orphan")
        await_gone(own_client, place, "llmkube")
        assert find(own_client, kinds.CONTROLLER_REVISIONS, place, "svc-v1") is not None


def as_earlier_releases_wrote_it(obj: Json) -> Json:
    """Return a revision without the label that names its format, and with its keys unsorted."""
    metadata = {name: obj["metadata"][name] for name in ("name", "labels", "annotations", "ownerReferences")}
    metadata["labels"] = {k: v for k, v in metadata["labels"].items() if k != revision.LABEL_FORMAT}
    data = {name: obj["data"][name] for name in ("spec", "annotations", "models")}
    return {"apiVersion": "apps/v1", "kind": "ControllerRevision", "metadata": metadata, "revision": 1, "data": data}
