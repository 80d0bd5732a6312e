"""The inventory of `herdsman cache` from logs, Models and services: pure parts, and the scripts of its pods run
by sh.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from automation.models.cache_inventory import (
    CacheUnreachable,
    Directory,
    InventoryBroken,
    Usage,
    check_bound,
    find_node,
    is_cache,
    parse_directories,
    parse_outcomes,
    plan_prune,
    why_pending,
)
from components.model_cache import inspector_pod, pruning_pod
from components.options import RenderOptions
from kubeapi.json_types import Json
from program.dialects.llmkube.parse.source import cache_key
from tests.support import needs

URL = "https://example.com/a.gguf"
KEY, OTHER, DRAFT = cache_key(URL), cache_key("https://example.com/b.gguf"), cache_key("https://example.com/d.gguf")
ORPHAN = "00112233445566ff"


def model(name: str, source: str, **status: Any) -> Json:
    return {"metadata": {"name": name, "namespace": "ns"}, "spec": {"source": source}, "status": status}


def service(name: str, **spec: Any) -> Json:
    return {"metadata": {"name": name, "namespace": "ns"}, "spec": spec}


MODELS = [
    model("a", URL),
    model("b", "https://example.com/b.gguf"),
    model("d", "https://example.com/d.gguf"),
    model("broken", "ftp://nowhere/x"),
]
SERVICES = [
    service("chat", modelRef="a", speculativeDecoding={"type": "draft-simple", "draftModelRef": "d"}),
    service("old", modelRef="gone"),
]


def found(*keys: str, busy: bool = False) -> list[Directory]:
    return [Directory(key, size, 1, 0, busy) for size, key in enumerate(keys, 1)]


def entries(*keys: str, busy: bool = False) -> Any:
    return Usage(MODELS, SERVICES).entries("ns", "llmkube-model-cache", found(*keys, busy=busy))


def test_each_directory_is_told_with_what_uses_it() -> None:
    by_key = {e.directory.key: (e.models, e.services, e.orphaned) for e in entries(KEY, OTHER, DRAFT, ORPHAN, "tmp")}
    assert by_key == {
        KEY: (("a",), ("chat",), False),
        OTHER: (("b",), (), False),
        DRAFT: (("d",), ("chat",), False),
        ORPHAN: ((), (), True),
        # The name is no cache key, so the owner is unknown.
        "tmp": ((), (), False),
    }
    assert [e.directory.key for e in entries(KEY, ORPHAN)] == [ORPHAN, KEY]


def test_a_model_that_makes_no_sense_keeps_what_it_has() -> None:
    (entry,) = entries(cache_key("ftp://nowhere/x"))
    assert (entry.models, entry.orphaned) == (("broken",), False)


def test_only_orphans_are_pruned_unless_one_is_named() -> None:
    chosen, refused = plan_prune(entries(KEY, OTHER, ORPHAN, "tmp"))
    assert ([e.directory.key for e in chosen], refused) == ([ORPHAN], [])
    chosen, refused = plan_prune(entries(KEY, ORPHAN), key=KEY)
    assert chosen == []
    assert refused == [f"{KEY} on ns/llmkube-model-cache is used by Model a, service chat"]


def test_a_model_s_cache_goes_only_while_no_service_uses_it() -> None:
    chosen, _ = plan_prune(entries(KEY, OTHER), model_keys=frozenset({OTHER}))
    assert [e.directory.key for e in chosen] == [OTHER]
    chosen, refused = plan_prune(entries(KEY, OTHER), model_keys=frozenset({KEY}))
    assert chosen == []
    assert "service chat" in refused[0]


def test_nothing_is_pruned_while_it_is_downloaded() -> None:
    chosen, refused = plan_prune(entries(ORPHAN, busy=True))
    assert chosen == []
    assert "under way" in refused[0]


def test_a_log_that_is_not_whole_is_not_believed() -> None:
    with pytest.raises(InventoryBroken, match="did not finish"):
        parse_directories("cache 00112233445566ff 4 1 0 0\n")
    with pytest.raises(InventoryBroken, match="its log is empty"):
        parse_outcomes("")
    assert parse_directories("cache a b c\ncache 00112233445566ff 4 1 9 1\nend\n") == [
        Directory(ORPHAN, 4096, 1, 9, True)
    ]


# --- the pods' scripts, on a folder -----------------------------------------------------------------------------------


Run = Callable[[Json, Path], str]


@pytest.fixture(params=["this machine's tools", "busybox"])
def run(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Run:
    """Return a function that runs a pod's script on a folder in place of the mounted claim. The pods' image has the
    tools of busybox.
    """
    path = os.environ["PATH"]
    if request.param == "busybox":
        needs.require("busybox")
        path = str(tmp_path_factory.mktemp("applets"))
        subprocess.run(["busybox", "--install", "-s", path], check=True)

    def in_folder(pod: Json, folder: Path) -> str:
        container = pod["spec"]["containers"][0]
        shell = shutil.which("sh", path=path)
        assert shell is not None
        arguments = [str(folder) if each == "/models" else each for each in container["command"][1:]]
        command = [shell, *arguments]
        return subprocess.run(command, env={"PATH": path}, capture_output=True, text=True, check=True).stdout

    return in_folder


@pytest.fixture
def cache(tmp_path: Path) -> Path:
    for key, files in ((KEY, ("a.gguf",)), (ORPHAN, ("q4/a-1.gguf", "q4/a-2.gguf")), (OTHER, ("b.gguf",))):
        for name in files:
            path = tmp_path / key / name
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_bytes(bytes(100_000))
    (tmp_path / KEY / ".a.gguf.sha256").write_text("x")
    lock = tmp_path / OTHER / ".b.gguf.lock"
    lock.mkdir()
    (lock / "beat").write_text("1")
    return tmp_path


def test_the_inspector_prints_what_is_there(cache: Path, run: Run) -> None:
    seen = {d.key: d for d in parse_directories(run(inspector_pod("p", "ns", "c", RenderOptions()), cache))}
    assert {key: (d.files, d.busy) for key, d in seen.items()} == {
        KEY: (1, False),
        ORPHAN: (2, False),
        OTHER: (1, True),
    }
    assert 200_000 <= seen[ORPHAN].size_bytes < 300_000
    assert abs(seen[KEY].changed_at - time.time()) < 60


def test_the_pruner_deletes_what_it_is_told_to_and_never_a_download(cache: Path, run: Run) -> None:
    (cache / ".herdsman-trash.0000000000000000").mkdir()
    gone = "f" * 16
    log = run(pruning_pod("p", "ns", "c", [ORPHAN, OTHER, gone], RenderOptions()), cache)
    assert parse_outcomes(log) == {ORPHAN: "deleted", OTHER: "busy", gone: "gone"}
    assert sorted(path.name for path in cache.iterdir()) == sorted([KEY, OTHER])
    old = time.time() - 3600
    os.utime(cache / OTHER / ".b.gguf.lock" / "beat", (old, old))
    os.utime(cache / OTHER / ".b.gguf.lock", (old, old))
    assert parse_outcomes(run(pruning_pod("p", "ns", "c", [OTHER], RenderOptions()), cache)) == {OTHER: "deleted"}


@pytest.mark.parametrize("key", ["", "..", "a/../b", "0011223344556677 ../x", "00112233445566FF", ORPHAN + "\n"])
def test_only_keys_are_ever_deleted(key: str) -> None:
    with pytest.raises(ValueError, match="not a cache key"):
        pruning_pod("p", "ns", "c", [key], RenderOptions())


def test_the_inspector_cannot_write_and_ends_by_itself() -> None:
    spec = inspector_pod("p", "ns", "c", RenderOptions(), node="n1")["spec"]
    assert spec["containers"][0]["volumeMounts"][0]["readOnly"] is True
    assert (spec["nodeName"], spec["restartPolicy"], spec["automountServiceAccountToken"]) == ("n1", "Never", False)
    assert spec["activeDeadlineSeconds"] == 600


# --- claims and pods --------------------------------------------------------------------------------------------------


def claim(phase: str = "Bound", mode: str = "ReadWriteOnce", name: str = "llmkube-model-cache") -> Json:
    metadata = {"name": name, "namespace": "ns"}
    return {"metadata": metadata, "spec": {"accessModes": [mode]}, "status": {"phase": phase}}


def pod(node: str, phase: str = "Running", mounted: str = "llmkube-model-cache") -> Json:
    volumes = [{"name": "x", "emptyDir": {}}, {"name": "c", "persistentVolumeClaim": {"claimName": mounted}}]
    return {"spec": {"nodeName": node, "volumes": volumes}, "status": {"phase": phase}}


def test_a_volume_of_one_node_is_looked_at_on_that_node() -> None:
    pods = [pod("n0", "Succeeded"), pod("n1", mounted="other"), pod("n2")]
    assert find_node(claim(), pods) == "n2"
    assert find_node(claim(mode="ReadWriteMany"), pods) == ""
    assert find_node(claim(), pods[:2]) == ""


def test_a_claim_without_a_volume_is_told_and_not_waited_for() -> None:
    check_bound(claim())
    with pytest.raises(CacheUnreachable, match="is Pending and has no volume yet"):
        check_bound(claim("Pending"))


def test_caches_are_known_by_label_or_name() -> None:
    labelled = claim(name="svc-model-cache")
    labelled["metadata"]["labels"] = {"app.kubernetes.io/component": "model-cache"}
    assert [is_cache(c) for c in (claim(), labelled, claim(name="data"))] == [True, True, False]


@pytest.mark.parametrize(
    ("status", "node", "why"),
    [
        ({"conditions": [{"type": "PodScheduled", "status": "False", "message": "0/1 nodes"}]}, "", "0/1 nodes"),
        (
            {"containerStatuses": [{"state": {"waiting": {"reason": "ErrImagePull", "message": "x"}}}]},
            "n",
            "ErrImagePull",
        ),
        (
            {"containerStatuses": [{"state": {"waiting": {"reason": "ContainerCreating"}}}]},
            "n",
            "not mounted the claim",
        ),
        ({}, "", "it is not scheduled yet"),
    ],
)
def test_a_pod_that_does_not_start_says_why(status: Json, node: str, why: str) -> None:
    assert why in why_pending({"spec": {"nodeName": node}, "status": status})
