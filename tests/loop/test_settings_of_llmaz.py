"""An edit of llmaz-global-config restarts no pods: in a real loop, over its restart, and after its state is lost."""

from __future__ import annotations

import itertools
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from kubeapi import kinds
from kubeapi.client import KubeClient
from kubeapi.json_types import Json
from tests.support import controlplane, dialects, loop
from tests.support.loop import LoopProcess, eventually, find
from tools.localcluster import LocalCluster

pytestmark = pytest.mark.soak

SOON_S = 60.0
_numbers = itertools.count()
AT = ("llmaz-system", "llmaz-global-config")


@pytest.fixture(scope="module")
def cluster() -> Iterator[LocalCluster]:
    with controlplane.running(("etcd", "kube-apiserver")) as running:
        yield running


@pytest.fixture(scope="module")
def client(cluster: LocalCluster) -> Iterator[KubeClient]:
    administrator = KubeClient.from_kubeconfig(str(cluster.kubeconfig))
    loop.install_crds(administrator)
    dialects.install_needed(administrator)
    dialects.install(administrator, "llmaz")
    for name in (AT[0], "settings"):
        body = {"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": name}}
        administrator.create(kinds.NAMESPACES, None, body)
    spec = {"familyName": "acme", "source": {"modelHub": {"modelID": "acme/m"}}}
    administrator.create(kinds.OPEN_MODELS, None, document(kinds.OPEN_MODELS, "m", spec))
    yield administrator
    administrator.close()


@pytest.fixture
def process(client: KubeClient, cluster: LocalCluster, pulumi_cli: Path, tmp_path: Path) -> Iterator[LoopProcess]:
    kubeconfig = loop.grant_loop_rights(client, cluster, tmp_path / "kubeconfig")
    started = LoopProcess(kubeconfig, tmp_path, environment=dialects.QUICK)
    try:
        yield started.start()
    finally:
        if started.poll() is None:
            started.stop()


def document(kind: kinds.Kind, name: str, spec: Json) -> Json:
    return {"apiVersion": kind.api_version, "kind": kind.kind, "metadata": {"name": name}, "spec": spec}


def settings(client: KubeClient, image: str) -> None:
    body = {
        "apiVersion": "v1",
        "kind": "ConfigMap",
        "metadata": {"name": AT[1], "namespace": AT[0]},
        "data": {"config.data": f"init-container-image: {image}\nscheduler-name: {image.rpartition(':')[2]}\n"},
    }
    client.apply(kinds.CONFIG_MAPS, AT[0], body, field_manager="kubectl", force=True)


def playground(client: KubeClient, name: str, **config: Any) -> None:
    spec = {"modelClaim": {"modelName": "m"}, **({"backendRuntimeConfig": config} if config else {})}
    body = document(kinds.PLAYGROUNDS, name, spec)
    client.apply(kinds.PLAYGROUNDS, "settings", body, field_manager="kubectl", force=True)


def made_from(client: KubeClient, name: str) -> tuple[str, str] | None:
    """Return the loader's image and the scheduler of a Playground's pods; None without a Deployment."""
    found = find(client, kinds.DEPLOYMENTS, "settings", name)
    if found is None:
        return None
    pod = found["spec"]["template"]["spec"]
    return pod["initContainers"][0]["image"], pod["schedulerName"]


def made(client: KubeClient, name: str, image: str) -> None:
    """Wait until a Playground's pods are made from the settings with this image."""
    wanted = (image, image.rpartition(":")[2])
    eventually(lambda: made_from(client, name) == wanted, what=f"pods of {name} with {image}", timeout_s=SOON_S)


def is_known(client: KubeClient, image: str) -> bool:
    """Return whether a new Playground gets these settings. The loop may see it earlier than an edit before it."""
    name = f"probe-{next(_numbers)}"
    playground(client, name)
    found = eventually(lambda: made_from(client, name), what=f"pods of {name}", timeout_s=SOON_S)
    return found == (image, image.rpartition(":")[2])


def replicas(client: KubeClient, name: str) -> int:
    return int(client.get(kinds.DEPLOYMENTS, "settings", name)["spec"]["replicas"])


def generation(client: KubeClient, name: str) -> int:
    return int(client.get(kinds.DEPLOYMENTS, "settings", name)["metadata"]["generation"])


def test_running_pods_take_edited_settings_with_their_next_change(client: KubeClient, process: LoopProcess) -> None:
    one, two, three = (f"registry.example/loader:v{number}" for number in (1, 2, 3))
    settings(client, one)
    playground(client, "old")
    made(client, "old", one)
    before = generation(client, "old")

    # New pods take the settings, running ones do not.
    settings(client, two)
    eventually(lambda: is_known(client, two), what="the loop to know the edited settings")
    playground(client, "new")
    made(client, "new", two)
    assert (made_from(client, "old"), generation(client, "old")) == ((one, "v1"), before)

    # The next loop reads the previous settings from the objects alone: its state is gone.
    process.stop()
    settings(client, three)
    shutil.rmtree(process.state)
    process.start()
    playground(client, "newest")
    made(client, "newest", three)
    client.patch(kinds.PLAYGROUNDS, "settings", "old", {"spec": {"replicas": 2}})
    eventually(lambda: replicas(client, "old") == 2, what="two replicas", timeout_s=SOON_S)
    assert made_from(client, "old") == (one, "v1")

    playground(client, "old", envs=[{"name": "A", "value": "1"}])
    made(client, "old", three)
