"""Which place a command works on."""

from __future__ import annotations

from pathlib import Path

import pytest

from automation.places.choice import choose_place
from automation.places.cluster import ClusterPlace
from automation.places.place import NoAccess

KUBECONFIG = """
clusters: [{name: c, cluster: {server: 'http://127.0.0.1:1'}}]
users: [{name: u, user: {}}]
contexts:
- {name: dev, context: {cluster: c, user: u, namespace: team}}
- {name: prod, context: {cluster: c, user: u}}
current-context: dev
"""


@pytest.fixture(autouse=True)
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.delenv("KUBECONFIG", raising=False)
    monkeypatch.delenv("KUBERNETES_SERVICE_HOST", raising=False)
    return tmp_path


def machine() -> ClusterPlace:
    return ClusterPlace.__new__(ClusterPlace)


def test_the_context_and_its_namespace_are_used(home: Path) -> None:
    (home / ".kube").mkdir()
    (home / ".kube/config").write_text(KUBECONFIG)
    place = choose_place(local=machine)
    assert (place.title, place.default_namespace) == ("cluster dev", "team")
    assert choose_place(context="prod").default_namespace == "default"
    with pytest.raises(NoAccess, match="made-up"):
        choose_place(context="made-up")


def test_without_a_cluster_this_machine_is_the_place() -> None:
    here = machine()
    assert choose_place(local=lambda: here) is here
    with pytest.raises(NoAccess, match="no kubeconfig"):
        choose_place()


def test_a_cluster_that_is_named_is_never_replaced_by_this_machine(home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(NoAccess):
        choose_place(context="dev", local=machine)
    monkeypatch.setenv("KUBECONFIG", str(home / "missing"))
    with pytest.raises(NoAccess):
        choose_place(local=machine)


def test_a_broken_kubeconfig_is_an_error_and_not_this_machine(home: Path) -> None:
    (home / ".kube").mkdir()
    (home / ".kube/config").write_text("clusters: [")
    with pytest.raises(NoAccess, match="not usable"):
        choose_place(local=machine)
