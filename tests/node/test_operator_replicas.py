"""Two pods of the operator with the state in PostgreSQL: the leader is frozen, cut off, downgraded, upgraded, deleted.

Each time the other pod takes over, no two engines run at the same time, and no model restarts.
"""

from __future__ import annotations

import base64
import contextlib
import time
from collections.abc import Iterator
from functools import partial
from pathlib import Path

import psutil
import pytest

from automation.webhook.registration import CRDS
from kubeapi import kinds
from kubeapi.client import KubeClient
from kubeapi.json_types import Json
from tests.support import conversions, earlier_code
from tests.support.controlplane import Api
from tests.support.conversions import clients_of, is_converted
from tests.support.loop import await_condition, eventually, model, service
from tests.support.model_server import File, FileServer
from tests.support.operator_pair import (
    APPLIED_S,
    LEASE_S,
    RESTARTED_S,
    Serving,
    assert_no_writer_meets_another,
    await_image,
    await_standby,
    await_takeover,
    changing,
    holder,
    in_a_run,
    is_guard,
    restarts,
)
from tests.support.operator_pods import NAMESPACE, OperatorPods
from tests.support.pod_links import PodLink
from tests.support.postgres import Postgres
from tools.node.image_set import LLAMA_SERVER_IMAGE
from tools.node.node import Node
from tools.tiny_model import write_tiny_model

pytestmark = pytest.mark.soak

OPTIONS = ("--replicas=2", "--state-secret=state", "--passphrase-secret=passphrase", "--kserve")
EARLIER_IMAGE = "herdsman.test/herdsman:earlier"
_HEALTH = {"httpGet": {"path": "/health", "port": 8080}, "periodSeconds": 1, "timeoutSeconds": 5}
ENGINE: Json = {
    "image": LLAMA_SERVER_IMAGE,
    "contextSize": 512,
    "resources": {"cpu": "250m"},
    "extraArgs": ["--threads", "1"],
    "probeOverrides": {"startup": {**_HEALTH, "failureThreshold": 60}, "readiness": _HEALTH},
}


@pytest.fixture(scope="module")
def table(node: Node) -> Iterator[Postgres]:
    """The database of the state, at an address that pods can reach."""
    server = Postgres(address=node.network.gateway, clients=node.network.pods)
    yield server
    server.close()


@pytest.fixture(scope="module")
def pair(operator_pods: OperatorPods, table: Postgres) -> OperatorPods:
    """The operator with two pods: one leads, and the other waits."""
    operator_pods.settings |= {"lease_duration_s": str(LEASE_S), "conversion_certificate_s": "60"}
    operator_pods.make_secret("state", url=table.url, **table.environment)
    operator_pods.make_secret("passphrase", passphrase="of a cluster that ends with the tests")
    operator_pods.install(*OPTIONS)
    operator_pods.await_leading()
    await_standby(operator_pods)
    return operator_pods


@pytest.fixture(scope="module")
def place(
    pair: OperatorPods,
    client: KubeClient,
    node_api: Api,
    files: FileServer,
    tmp_path_factory: pytest.TempPathFactory,
) -> Iterator[str]:
    """A namespace with a model that serves, and a service without pods that tests change."""
    weights = write_tiny_model(tmp_path_factory.mktemp("weights") / "tiny.gguf").read_bytes()
    with node_api.namespace("replicas") as name:
        model(client, name, source=files.serve("/replicas.gguf", File(weights)))
        service(client, name, "chat", **ENGINE)
        service(client, name, "changed", **{**ENGINE, "replicas": 0})
        try:
            await_condition(client, name, "chat", "Ready", "True", timeout_s=120)
        except AssertionError as error:
            raise AssertionError(f"{error}\n{pair.told()}") from None
        yield name


def test_a_frozen_leader_is_ended_and_the_next_one_goes_on(
    pair: OperatorPods, client: KubeClient, table: Postgres, place: str
) -> None:
    """During an engine run, all processes of the leader's container except the guard are stopped.

    The next leader is the other pod, or the same pod where its container is restarted before the Lease expires: its new
    process can prove that the former one is dead.
    """
    leader, former = pair.await_leading(), holder(client)
    await_standby(pair)
    before, restarted, since = Serving.of(client, place), restarts(pair, leader), time.time()
    with changing(pair, place) as changes:
        changes.await_applied(timeout_s=APPLIED_S)
        processes = in_a_run(pair, leader)
        assert [is_guard(process) for process in processes].count(True) == 1
        for process in processes:
            with contextlib.suppress(psutil.NoSuchProcess):
                if not is_guard(process):
                    process.suspend()
        frozen_at = time.monotonic()
        took_s = await_takeover(pair, former, processes)
        changes.await_applied(timeout_s=APPLIED_S)
        applied_s = time.monotonic() - frozen_at
        print(f"frozen with a lease of {LEASE_S:g} s: Lease after {took_s:.1f} s, a change after {applied_s:.1f} s")
        await_standby(pair)
        changes.await_applied(timeout_s=APPLIED_S)
    assert restarts(pair, leader) == restarted + 1
    assert_no_writer_meets_another(table, since, leader, pair.await_leading())
    assert Serving.of(client, place) == before


def test_a_leader_that_is_cut_off_ends_its_engine_and_waits_when_it_is_back(
    pair: OperatorPods, client: KubeClient, node: Node, table: Postgres, place: str
) -> None:
    leader, other, former = pair.await_leading(), await_standby(pair), holder(client)
    before, restarted, since = Serving.of(client, place), restarts(pair, leader), time.time()
    link = PodLink(node, leader)
    with changing(pair, place) as changes:
        changes.await_applied(timeout_s=APPLIED_S)
        processes = in_a_run(pair, leader)
        cut_at = time.monotonic()
        link.cut()
        try:
            took_s = await_takeover(pair, former, processes)
            changes.await_applied(timeout_s=APPLIED_S)
            applied_s = time.monotonic() - cut_at
            eventually(lambda: restarts(pair, leader) > restarted, what="a restart", timeout_s=RESTARTED_S)
        finally:
            link.heal()
        healed_at = time.monotonic()
        assert await_standby(pair)["metadata"]["uid"] == leader["metadata"]["uid"]
        back_s = time.monotonic() - healed_at
        print(
            f"cut off with a lease of {LEASE_S:g} s: Lease after {took_s:.1f} s, a change after {applied_s:.1f} s; "
            f"back, it waits after {back_s:.1f} s"
        )
        changes.await_applied(timeout_s=APPLIED_S)
    assert pair.await_leading()["metadata"]["uid"] == other["metadata"]["uid"]
    assert_no_writer_meets_another(table, since, leader, other)
    assert Serving.of(client, place) == before


def test_a_downgrade_and_an_upgrade_by_one_commit_restart_nothing(
    pair: OperatorPods, client: KubeClient, node: Node, place: str, tmp_path: Path
) -> None:
    commit = earlier_code.commit_before()
    earlier_code.load_image(node, pair.image, commit, name=EARLIER_IMAGE, folder=tmp_path)
    before = Serving.of(client, place)
    for image in (EARLIER_IMAGE, pair.image):
        began = time.monotonic()
        changed = pair.install(*OPTIONS, image=image)
        assert [each["kind"] for each in changed if each["op"] != "update"] == []
        leader = await_image(pair, image)
        took_s = time.monotonic() - began
        with changing(pair, place) as changes:
            changes.await_applied(timeout_s=APPLIED_S)
        print(f"{image}: two pods replaced in {took_s:.1f} s")
        assert Serving.of(client, place) == before
        asked = {each["name"] for each in pair.lines(leader) if each.get("event") == "Submitted to the engine"}
        assert asked == {"changed"}, "another release sends its engine no request for an unchanged service"


@pytest.fixture(scope="module")
def converted(pair: OperatorPods, node_api: Api, place: str) -> Iterator[str]:
    """The CRDs of KServe, and the path of an object in the version that is not stored."""
    with conversions.written(node_api, place, pair.told) as path:
        yield path


def authorities_of(client_config: Json) -> list[bytes]:
    end = b"-----END CERTIFICATE-----"
    bundle = base64.b64decode(client_config.get("caBundle") or "")
    return [part.strip() + end for part in bundle.split(end) if part.strip()]


def test_the_leader_converts_and_so_does_the_next_one(
    pair: OperatorPods, client: KubeClient, node_api: Api, converted: str
) -> None:
    leader = pair.await_leading()
    await_standby(pair)
    assert is_converted(node_api, converted)
    before = clients_of(node_api)
    assert all(each["url"].startswith(f"https://{leader['status']['podIP']}:9443/convert/") for each in before)
    began = time.monotonic()
    client.delete(kinds.PODS, NAMESPACE, leader["metadata"]["name"])
    # Without a leader no webhook converts, so requests for v1alpha1 fail.
    # The pod that replaces the deleted one may take the lease before the pod that waits for it asks again.
    wanted = f"https://{pair.await_leading(other_than=leader)['status']['podIP']}:9443/convert/"
    eventually(
        lambda: all(each.get("url", "").startswith(wanted) for each in clients_of(node_api)),
        what="the CRDs to be told of the next leader",
        timeout_s=60,
    )
    eventually(partial(is_converted, node_api, converted), what="a conversion by the next leader")
    print(f"leader deleted: the next one converts after {time.monotonic() - began:.1f} s")
    after = clients_of(node_api)
    assert not {each["caBundle"] for each in before} & {each["caBundle"] for each in after}
    await_standby(pair)


def test_conversions_go_on_while_the_authority_is_replaced(pair: OperatorPods, node_api: Api, converted: str) -> None:
    """A certificate of this installation is valid for 60 s, and replaced after half of that time."""
    pair.await_leading()
    [before, _] = [set(authorities_of(each)) for each in clients_of(node_api)]
    failed, reads = [], 0

    def is_replaced() -> bool:
        nonlocal reads
        reads += 1
        if not is_converted(node_api, converted):
            failed.append(reads)
        return all(len(found := authorities_of(each)) == 1 and found[0] not in before for each in clients_of(node_api))

    eventually(is_replaced, what="another authority alone", timeout_s=90)
    assert not failed, f"{len(failed)} of {reads} reads failed"


def test_an_authority_that_somebody_overwrote_is_written_again(
    pair: OperatorPods, client: KubeClient, node_api: Api, converted: str
) -> None:
    pair.await_leading()
    for name in CRDS:
        crd = client.get(kinds.CRDS, None, name)
        del crd["spec"]["conversion"]["webhook"]["clientConfig"]["caBundle"]
        client.request("PUT", kinds.CRDS.path(None, name), body=crd)
    eventually(
        lambda: all(authorities_of(each) for each in clients_of(node_api)), what="the authority again", timeout_s=90
    )
    eventually(partial(is_converted, node_api, converted), what="a conversion")
