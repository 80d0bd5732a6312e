"""Lost hosts on a real API server: simulated agents with real Leases and EndpointSlices, and the part of the loop that
detects lost hosts.

A Lease lasts 2 s here, to save time. The tests cover missing heartbeats, wrong clocks, outages of the API server,
LLMKube's agents, which have no Lease, agents that stop, and ten agents that restart at the same time.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, suppress
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest

from agent.contract import ANNOTATION_FENCED
from agent.server.cluster.host_lease import HostLease, lease_name, lease_object
from automation.cache import trim_hosts
from automation.hosts.liveness import Liveness
from automation.hosts.lost_hosts import HostConditions, LostHosts, ready_of
from automation.settings import SYSTEM_NAMESPACE
from kubeapi import kinds
from kubeapi.client import KubeClient
from kubeapi.errors import AlreadyExists, KubeError
from kubeapi.informer import Informer
from kubeapi.json_types import Json
from tests.support.loop import eventually, install_crds
from tests.support.relay import Relay
from tools.localcluster import LocalCluster

DURATION_S = 2
RENEW_S = 0.5
OUT_WITHIN_S = 4 * DURATION_S
"""A host is lost DURATION_S after its last heartbeat. The rest is for a busy machine."""


@pytest.fixture(scope="module")
def client(control_plane: LocalCluster) -> Iterator[KubeClient]:
    made = KubeClient.from_kubeconfig(str(control_plane.kubeconfig))
    install_crds(made)
    body = {"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": SYSTEM_NAMESPACE}}
    with suppress(AlreadyExists):
        made.create(kinds.NAMESPACES, None, body)
    yield made
    made.close()


class Judge:
    """The part of the loop that detects lost hosts."""

    def __init__(self, client: KubeClient, namespace: str) -> None:
        self.liveness = Liveness()

        def seen(old: Json | None, new: Json | None) -> None:
            host = (new or old or {})["host"]
            if host.endswith(namespace):
                self.liveness.seen(host, new)

        self._leases = Informer(
            client,
            kinds.LEASES,
            namespaces=[SYSTEM_NAMESPACE],
            label_selector="herdsman.dev/host",
            transform=trim_hosts.lease,
            on_change=seen,
        )
        self._slices = Informer(
            client, kinds.ENDPOINT_SLICES, namespaces=[namespace], transform=trim_hosts.endpoint_slice
        )
        self._lost_hosts = LostHosts(
            client,
            liveness=self.liveness,
            leases=self._leases,
            slices=self._slices,
            conditions=HostConditions(client),
        )
        self.liveness.on_change = self._lost_hosts.host_changed

    def start(self) -> None:
        for informer in (self._leases, self._slices):
            informer.start()
            assert informer.wait_synced(60)
        self._lost_hosts.start()

    def stop(self) -> None:
        self._lost_hosts.stop()
        self._leases.stop()
        self._slices.stop()


StartJudge = Callable[..., Judge]


@pytest.fixture
def judge(client: KubeClient, namespace: str) -> Iterator[StartJudge]:
    with ExitStack() as stack:

        def start(through: KubeClient | None = None) -> Judge:
            made = Judge(through or client, namespace)
            made.start()
            stack.callback(made.stop)
            return made

        yield start


class Host:
    """A host that renews its Lease and has one ready endpoint. `skew` is the error of its clock."""

    def __init__(
        self,
        client: KubeClient,
        namespace: str,
        name: str,
        *,
        skew: timedelta = timedelta(),
        duration_s: int = DURATION_S,
    ) -> None:
        self.name = f"{name}-{namespace}"
        self._client = client
        self._namespace = namespace
        self._skew = skew
        self._duration_s = duration_s
        self._stop = threading.Event()
        self._thread: threading.Thread | None = None
        self.renew()
        self.publish(ready=True)
        host = {"apiVersion": kinds.HOSTS.api_version, "kind": "Host", "metadata": {"name": self.name}}
        client.apply(kinds.HOSTS, None, {**host, "spec": {}}, field_manager="tests")
        self.write_ready_status()

    def write_ready_status(self) -> None:
        now = datetime.now(UTC).isoformat(timespec="seconds").replace("+00:00", "Z")
        condition = {"type": "Ready", "status": "True", "reason": "AgentRunning", "message": ""}
        host = {"apiVersion": kinds.HOSTS.api_version, "kind": "Host", "metadata": {"name": self.name}}
        status = {"conditions": [{**condition, "lastTransitionTime": now}]}
        self._client.apply(
            kinds.HOSTS, None, {**host, "status": status}, field_manager="agent", force=True, subresource="status"
        )

    def renew(self) -> None:
        now = datetime.now(UTC) + self._skew
        lease = lease_object(
            None, host=self.name, namespace=SYSTEM_NAMESPACE, holder="agent", duration_s=self._duration_s, now=now
        )
        self._client.apply(kinds.LEASES, SYSTEM_NAMESPACE, lease, field_manager="agent", force=True)

    def publish(self, *, ready: bool) -> None:
        labels = {"herdsman.dev/host": self.name, "kubernetes.io/service-name": self.name}
        self._client.apply(
            kinds.ENDPOINT_SLICES,
            self._namespace,
            slice_object(self.name, labels, ready=ready),
            field_manager="agent",
            force=True,
        )

    def live(self) -> None:
        """Renew the Lease regularly from now on."""
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._thread.start()

    def die(self) -> None:
        self._stop.set()
        if self._thread is not None:
            self._thread.join()

    def _run(self) -> None:
        while not self._stop.wait(RENEW_S):
            with suppress(KubeError):
                self.renew()

    @property
    def ready(self) -> bool:
        return is_ready(self._client, self._namespace, self.name)

    @property
    def fence(self) -> str:
        lease = self._client.get(kinds.LEASES, SYSTEM_NAMESPACE, lease_name(self.name))
        return str((lease["metadata"].get("annotations") or {}).get(ANNOTATION_FENCED, ""))

    @property
    def reason(self) -> str:
        return str(ready_of(self._client.get(kinds.HOSTS, None, self.name)).get("reason"))


def slice_object(name: str, labels: dict[str, str], *, ready: bool) -> Json:
    return {
        "apiVersion": kinds.ENDPOINT_SLICES.api_version,
        "kind": "EndpointSlice",
        "metadata": {"name": name, "labels": labels},
        "addressType": "IPv4",
        "endpoints": [{"addresses": ["10.1.2.3"], "conditions": {"ready": ready, "serving": ready}}],
        "ports": [{"name": "http", "protocol": "TCP", "port": 8080}],
    }


def is_ready(client: KubeClient, namespace: str, name: str) -> bool:
    conditions = client.get(kinds.ENDPOINT_SLICES, namespace, name)["endpoints"][0]["conditions"]
    assert conditions["ready"] == conditions["serving"]
    return bool(conditions["ready"])


@pytest.fixture
def host(client: KubeClient, namespace: str) -> Iterator[Callable[..., Host]]:
    with ExitStack() as stack:

        def make(name: str, **options: Any) -> Host:
            made = Host(client, namespace, name, **options)
            made.live()
            stack.callback(made.die)
            return made

        yield make


def test_a_silent_host_is_fenced_and_out_of_its_services_and_back_when_it_says_so(
    client: KubeClient, namespace: str, judge: StartJudge, host: Callable[..., Host]
) -> None:
    dead, alive = host("dead"), host("alive")
    peers = {"kubernetes.io/service-name": "peers", "llmkube.ai/managed-by": "metal-agent"}
    client.create(kinds.ENDPOINT_SLICES, namespace, slice_object("peers", peers, ready=True))
    liveness = judge().liveness
    time.sleep(1.5 * DURATION_S)
    assert set(liveness.living()) == {dead.name, alive.name}
    dead.die()
    died = time.monotonic()
    eventually(lambda: not dead.ready, what="the endpoint to be out", timeout_s=60)
    assert time.monotonic() - died < OUT_WITHIN_S
    assert dead.fence
    eventually(lambda: dead.reason == "HostLost", what="the Host's status to show it", timeout_s=60)
    assert not liveness.alive(dead.name)
    assert (alive.ready, alive.fence, alive.reason) == (True, "", "AgentRunning")
    assert is_ready(client, namespace, "peers"), "an agent that has no Lease is not judged by one"
    # A delayed write of the host arrives; the loop undoes it.
    dead.publish(ready=True)
    eventually(lambda: not dead.ready, what="the late word to be undone", timeout_s=60)
    # A renewal alone is not enough: an agent that ignores the fence could send one.
    dead.renew()
    time.sleep(1)
    assert not liveness.alive(dead.name)
    lease = client.get(kinds.LEASES, SYSTEM_NAMESPACE, lease_name(dead.name))
    fenceless = lease_object(
        lease, host=dead.name, namespace=SYSTEM_NAMESPACE, holder="agent", duration_s=DURATION_S, now=datetime.now(UTC)
    )
    client.replace(kinds.LEASES, SYSTEM_NAMESPACE, fenceless)
    dead.live()
    eventually(lambda: liveness.alive(dead.name), what="the host to be back", timeout_s=60)
    dead.publish(ready=True)
    dead.write_ready_status()

    def loop_holds_it() -> bool:
        fields = client.get(kinds.HOSTS, None, dead.name)["metadata"]["managedFields"]
        return any(f["manager"] == "herdsman-loop" for f in fields)

    eventually(lambda: not loop_holds_it(), what="the loop to take its hand off", timeout_s=60)
    assert dead.reason == "AgentRunning"
    time.sleep(DURATION_S)
    assert dead.ready


@pytest.mark.soak
def test_a_wrong_clock_changes_nothing(judge: StartJudge, host: Callable[..., Host]) -> None:
    behind, ahead = host("behind", skew=timedelta(minutes=-10)), host("ahead", skew=timedelta(minutes=10))
    liveness = judge().liveness
    time.sleep(2.5 * DURATION_S)
    assert set(liveness.living()) == {behind.name, ahead.name}
    for wrong in (behind, ahead):
        wrong.die()
    died = time.monotonic()
    eventually(lambda: not behind.ready and not ahead.ready, what="the endpoints to be out", timeout_s=60)
    assert time.monotonic() - died < OUT_WITHIN_S


def test_a_host_that_says_goodbye_is_lost_at_once_and_not_fenced(
    client: KubeClient, judge: StartJudge, host: Callable[..., Host]
) -> None:
    # With this duration, missing heartbeats would not be noticed before the test ends.
    leaving = host("leaving", duration_s=600)
    liveness = judge().liveness
    eventually(lambda: liveness.alive(leaving.name), what="the host to be known")
    leaving.die()
    client.patch(
        kinds.LEASES,
        SYSTEM_NAMESPACE,
        lease_name(leaving.name),
        {"spec": {"holderIdentity": ""}},
        field_manager="agent",
    )
    eventually(lambda: not liveness.alive(leaving.name), what="the good-bye to be heard")
    eventually(lambda: not leaving.ready, what="the endpoint to be out", timeout_s=60)
    assert not leaving.fence


@pytest.mark.soak
def test_nobody_is_lost_while_the_api_server_cannot_be_heard(
    client: KubeClient,
    control_plane: LocalCluster,
    judge: StartJudge,
    host: Callable[..., Host],
    tmp_path: Path,
) -> None:
    relay = Relay(control_plane.server)
    through = KubeClient.from_kubeconfig(relay.kubeconfig(control_plane.kubeconfig, tmp_path / "relayed"))
    there, silent = host("there"), host("silent")
    liveness = judge(through).liveness
    eventually(lambda: len(liveness.living()) == 2, what="the hosts to be known")
    try:
        # The API server does not respond, so no heartbeats arrive. Meanwhile one of the hosts really fails.
        relay.refusing = True
        relay.cut()
        silent.die()
        time.sleep(4 * DURATION_S)
        assert set(liveness.living()) == {there.name, silent.name}
        silent.live()
        relay.refusing = False
        time.sleep(2 * DURATION_S)
        assert (there.fence, silent.fence, there.ready, silent.ready) == ("", "", True, True)
        # Frozen: connections stay open, and no bytes arrive.
        relay.freeze()
        time.sleep(2 * DURATION_S)
        relay.thaw()
        time.sleep(2 * DURATION_S)
        assert (there.fence, silent.fence, there.ready, silent.ready) == ("", "", True, True)
        silent.die()
        eventually(lambda: silent.fence and not silent.ready, what="a death to be noticed again", timeout_s=60)
    finally:
        relay.close()
        through.close()


@pytest.mark.soak
def test_ten_agents_that_restart_at_once_go_on_with_their_leases_and_do_not_beat_together(
    client: KubeClient, namespace: str, judge: StartJudge
) -> None:
    liveness = judge().liveness
    renewed: dict[str, list[float]] = {}
    with ExitStack() as stack:

        def begin(number: int, incarnation: int) -> HostLease:
            made = HostLease(
                client,
                host=f"many-{number}-{namespace}",
                namespace=SYSTEM_NAMESPACE,
                holder=f"agent-{number}",
                on_lost=lambda why: pytest.fail(why),
                catch_up=lambda: pytest.fail("nothing was called lost") or False,
                renew_s=1.0,
            )
            made.acquire()
            made.start()
            stack.callback(made.stop, release=False)
            assert made.is_trusted
            return made

        first = [begin(number, 0) for number in range(10)]
        time.sleep(1.5)
        for each in first:
            each.stop(release=False)  # as after a kill: the Lease is not released
        second = [begin(number, 1) for number in range(10)]
        deadline = time.monotonic() + 4
        while time.monotonic() < deadline:
            for each in client.list(kinds.LEASES, SYSTEM_NAMESPACE, label_selector="herdsman.dev/host")["items"]:
                name, at = each["metadata"]["name"], datetime.fromisoformat(each["spec"]["renewTime"]).timestamp()
                if "-many-" in name and name.endswith(namespace) and at not in (seen := renewed.setdefault(name, [])):
                    seen.append(at)
                    assert each["spec"]["leaseTransitions"] == 0
            time.sleep(0.1)
        eventually(lambda: all(each.is_trusted for each in second), what="every agent to trust its Lease")
        assert len(liveness.living()) == 10
        assert len(renewed) == 10

        def widest_s(at: int) -> float:
            """The longest part of a second in which no agent renews its Lease."""
            parts = sorted(times[at] % 1.0 for times in renewed.values())
            return max(b - a for a, b in zip(parts, [*parts[1:], parts[0] + 1], strict=True))

        # A server that stalls lets all agents go on at the same moment, so one round that is spread is enough.
        rounds = range(min(len(times) for times in renewed.values()))
        assert min(widest_s(at) for at in rounds) < 0.8, f"they beat together: {renewed}"
