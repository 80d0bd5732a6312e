"""A loop that starts before its API server responds waits for it. With a wrong kubeconfig, or with `--once`, it
exits.
"""

from __future__ import annotations

import urllib.error
import urllib.request
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml

from kubeapi.client import KubeClient
from tests.support.loop import LoopProcess, eventually, grant_loop_rights, install_crds
from tools.localcluster import LocalCluster

pytestmark = pytest.mark.soak

WAITING = "Waiting for the API server, which does not answer"


@pytest.fixture(scope="module")
def kubeconfig(own_client: KubeClient, own_cluster: LocalCluster, tmp_path_factory: pytest.TempPathFactory) -> Path:
    install_crds(own_client)
    return grant_loop_rights(own_client, own_cluster, tmp_path_factory.mktemp("rights") / "kubeconfig")


@pytest.fixture
def loop(kubeconfig: Path, pulumi_cli: Path, tmp_path: Path) -> Iterator[LoopProcess]:
    made = LoopProcess(kubeconfig, tmp_path / "loop")
    yield made
    made.stop()


@pytest.fixture
def silent(own_cluster: LocalCluster) -> Iterator[LocalCluster]:
    """A cluster whose API server is stopped during the test and started after it."""
    own_cluster.kill("kube-apiserver")
    yield own_cluster
    own_cluster.start("kube-apiserver")


def asked(loop: LoopProcess, path: str) -> tuple[int, str]:
    try:
        with urllib.request.urlopen(f"{loop.url}{path}", timeout=5) as answer:
            return answer.status, answer.read().decode()
    except urllib.error.HTTPError as error:
        return error.code, error.read().decode()


def said(loop: LoopProcess, event: str) -> list[dict[str, Any]]:
    return [line for line in loop.lines() if line.get("event") == event]


def is_ready(loop: LoopProcess) -> bool:
    return asked(loop, "/readyz")[0] == 200


def test_a_loop_waits_for_an_api_server_that_refuses_connections(own_cluster: LocalCluster, loop: LoopProcess) -> None:
    own_cluster.kill("kube-apiserver")
    try:
        loop.start(ready=False)
        eventually(lambda: said(loop, WAITING), what="a word that it waits")
        assert asked(loop, "/healthz")[0] == 200
        code, why = asked(loop, "/readyz")
        assert code == 503 and "[-] api-server failed: " in why and "refused" in why
        assert asked(loop, "/readyz?standby=ok")[0] == 503, "it is no candidate for the lease"
        with pytest.raises(AssertionError, match="waited 8 s"):
            eventually(lambda: loop.poll() is not None, what="its end", timeout_s=8)
    finally:
        own_cluster.start("kube-apiserver")
    eventually(lambda: is_ready(loop), what="a loop with filled caches", timeout_s=60)
    (waiting,) = said(loop, WAITING)
    assert waiting["server"] == own_cluster.server and "refused" in waiting["error"]
    assert said(loop, "The API server answers")


def test_a_loop_waits_for_an_api_server_that_is_frozen(own_cluster: LocalCluster, loop: LoopProcess) -> None:
    own_cluster.pause("kube-apiserver")
    try:
        loop.start(ready=False)
        eventually(lambda: said(loop, WAITING), what="a word that it waits", timeout_s=40)
        assert asked(loop, "/healthz")[0] == 200
    finally:
        own_cluster.resume("kube-apiserver")
    eventually(lambda: is_ready(loop), what="a loop with filled caches", timeout_s=60)


def test_a_loop_that_waits_ends_when_it_is_told_to(silent: LocalCluster, loop: LoopProcess) -> None:
    loop.start(ready=False)
    eventually(lambda: said(loop, WAITING), what="a word that it waits")
    assert loop.stop() == 0


def test_a_run_for_ci_does_not_wait(silent: LocalCluster, loop: LoopProcess) -> None:
    loop.start("--once", ready=False)
    assert loop.wait(30) == 1
    assert f"cannot use {silent.server}" in loop.log.read_text()


def with_other(kubeconfig: Path, to: Path, change: Callable[[Any, Any], None]) -> Path:
    config = yaml.safe_load(kubeconfig.read_text())
    change(config["clusters"][0]["cluster"], config["users"][0]["user"])
    to.write_text(yaml.safe_dump(config))
    return to


def wrong_token(_cluster: Any, user: Any) -> None:
    user.clear()
    user["token"] = "nobody"


def wrong_authority(cluster: Any, user: Any) -> None:
    cluster["certificate-authority-data"] = user["client-certificate-data"]


def wrong_name(cluster: Any, _user: Any) -> None:
    cluster["server"] = "https://api.herdsman.invalid:6443"


@pytest.mark.parametrize(
    ("change", "why"),
    [(wrong_token, "Unauthorized"), (wrong_authority, "CERTIFICATE_VERIFY_FAILED"), (wrong_name, "herdsman.invalid")],
    ids=["token", "authority", "name"],
)
def test_a_kubeconfig_that_is_wrong_ends_the_loop(
    kubeconfig: Path, tmp_path: Path, pulumi_cli: Path, change: Callable[[Any, Any], None], why: str
) -> None:
    loop = LoopProcess(with_other(kubeconfig, tmp_path / "wrong", change), tmp_path / "loop")
    loop.start(ready=False)
    try:
        assert loop.wait(60) == 1
        assert "cannot use https://" in loop.log.read_text() and why in loop.log.read_text()
    finally:
        loop.stop()
