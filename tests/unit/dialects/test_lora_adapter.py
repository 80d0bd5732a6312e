"""LoRAAdapters: what their specs may say, which of several counts, and their statuses."""

from __future__ import annotations

import json
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
import yaml

from automation.cli.main import invoke
from kubeapi.json_types import Json
from program.desired.adapter import AdapterFacts, AdapterOutcome, AdapterReason, AdapterReplica
from program.desired.errors import SpecInvalid
from program.desired.facts import Problem
from program.dialects.llmkube.parse.adapter import DEFAULT_FILES, adapter_of, claims_of, files_of
from program.dialects.llmkube.status.adapter import adapter_status

NOW = datetime(2026, 11, 28, tzinfo=UTC)
SPEC: Json = {"inferenceServiceRef": {"name": "chat"}, "name": "sql", "path": "/adapters/sql"}
LOADED = AdapterOutcome(state="loaded")
FAILED = AdapterOutcome(state="failed", reason=AdapterReason.LOAD_UNSUCCESSFUL, message="rank 64 is too high")


def cr(resource: str = "sql", created: str = "2026-11-01T00:00:00Z", status: Json | None = None, **spec: Any) -> Json:
    metadata = {"name": resource, "namespace": "prod", "uid": resource, "generation": 2, "creationTimestamp": created}
    return {"metadata": metadata, "spec": {**SPEC, **spec}, "status": status}


def test_an_adapter_is_read() -> None:
    adapter = adapter_of(cr(path="org/sql-lora"))
    assert adapter.claim == ("prod", "llmkube", "chat", "sql")
    reference = {"name": "chat", "kind": "Playground"}
    assert adapter_of(cr(inferenceServiceRef=reference)).claim == ("prod", "llmaz", "chat", "sql")
    assert adapter.path == "org/sql-lora"


@pytest.mark.parametrize(
    ("spec", "path", "address", "files"),
    [
        ({"source": "https://h/sql.gguf"}, "/adapter.gguf", "https://h/sql.gguf", ()),
        ({"source": "s3://bucket/sql.gguf"}, "/adapter.gguf", "s3://bucket/sql.gguf", ()),
        ({"source": "hf://org/repo@v1/sql.gguf"}, "/adapter.gguf", "hf://org/repo@v1/sql.gguf", ()),
        ({"source": "hf://org/repo"}, "", "hf://org/repo", DEFAULT_FILES),
        ({"source": "s3://bucket/sql/"}, "", "s3://bucket/sql/", DEFAULT_FILES),
        ({"source": "hf://org/repo", "files": ["a.bin"]}, "", "hf://org/repo", ("a.bin",)),
    ],
)
def test_a_source_is_one_file_or_a_directory(spec: Json, path: str, address: str, files: tuple[str, ...]) -> None:
    secret = {"sourceSecretRef": {"name": "token"}, "sha256": "A" * 64}
    adapter = adapter_of(cr(path=None, **spec, **secret))
    assert adapter.file is not None and adapter.source is not None
    assert adapter.location == f"/lora-adapters/{adapter.file.digest}{path}"
    found = adapter.source
    assert (found.source.address, found.files, found.source_secret) == (address, files, "token")
    assert found.sha256 == "a" * 64


def test_another_content_has_another_digest() -> None:
    specs: list[Json] = [{}, {"sha256": "a" * 64}, {"source": "hf://org/b"}, {"files": ["x"]}, {"name": "other"}]
    found = [adapter_of(cr(path=None, **{"source": "hf://org/a", **spec})).file for spec in specs]
    assert len({each.digest for each in found if each}) == len(specs)


def test_replicas_start_with_the_adapters_that_their_engine_can_read() -> None:
    service: Json = {"metadata": {"name": "chat"}, "spec": {}}
    crs = [
        cr("z", "2026-11-01T00:00:00Z", name="z", path=None, source="https://h/z.gguf"),
        cr("a", "2026-11-02T00:00:00Z", name="a", path=None, source="https://h/a.gguf"),
        cr("peft", name="peft", path=None, source="hf://org/peft"),
        cr("mounted", name="mounted"),
        cr("elsewhere", name="x", inferenceServiceRef={"name": "code"}, path=None, source="https://h/a.gguf"),
        cr("bad", name="bad", source="https://h/a.gguf"),
        cr(
            "p",
            name="p",
            inferenceServiceRef={"name": "chat", "kind": "Playground"},
            path=None,
            source="https://h/a.gguf",
        ),
    ]
    ending = cr("ending", name="ending", path=None, source="https://h/e.gguf")
    ending["metadata"]["deletionTimestamp"] = "t"

    def names(*, on_host: bool, **spec: Any) -> list[str]:
        return [each.resource for each in files_of({**service, "spec": spec}, [*crs, ending], on_host=on_host)]

    assert names(on_host=False) == ["z", "a"], "by age, so that a new one changes no number"
    assert names(on_host=True) == ["mounted", "z", "a"]
    assert names(on_host=False, runtime="vllm") == ["peft"]
    assert names(on_host=True, runtime="vllm") == ["mounted", "peft"], "a path on the host is a directory"
    assert names(on_host=True, runtime="sglang") == names(on_host=False, runtime="tgi") == []
    assert names(on_host=True, extraArgs=["--cache-ram", "512"]) == []


@pytest.mark.parametrize(
    ("spec", "field", "reason"),
    [
        ({"path": "adapters/sql/x"}, "spec.path", "SpecInvalid"),
        ({"path": "/adapters/../etc"}, "spec.path", "SpecInvalid"),
        ({"path": "/adapters/a\nb"}, "spec.path", "SpecInvalid"),
        ({"path": "http://example/x"}, "spec.path", "SpecInvalid"),
        ({"path": 5}, "spec.path", "SpecInvalid"),
        ({"path": None}, "spec.path", "SpecInvalid"),
        ({"source": "https://h/x.gguf"}, "spec.path", "SpecInvalid"),
        ({"path": None, "source": "pvc://claim/x.gguf"}, "spec.source", "SpecInvalid"),
        ({"path": None, "source": "gs://bucket/x.gguf"}, "spec.source", "SpecInvalid"),
        ({"path": None, "source": "hf://org/a", "files": ["../x"]}, "spec.files[0]", "SpecInvalid"),
        ({"name": "a:b"}, "spec.name", "SpecInvalid"),
        ({"name": None}, "spec.name", "SpecInvalid"),
        ({"inferenceServiceRef": {}}, "spec.inferenceServiceRef.name", "SpecInvalid"),
        (
            {"inferenceServiceRef": {"name": "chat", "namespace": "other"}},
            "spec.inferenceServiceRef.namespace",
            "NamespaceNotAllowed",
        ),
    ],
)
def test_an_invalid_spec_is_refused_with_its_field(spec: Json, field: str, reason: str) -> None:
    with pytest.raises(SpecInvalid) as refused:
        adapter_of(cr(**spec))
    assert (refused.value.field, refused.value.reason) == (field, reason)


def test_the_oldest_adapter_of_a_name_counts() -> None:
    crs = [
        cr("b", "2026-11-02T00:00:00Z"),
        cr("a", "2026-11-03T00:00:00Z"),
        cr("0", "2026-11-01T00:00:00Z", path="not valid"),
        cr("other", "2026-11-01T00:00:00Z", inferenceServiceRef={"name": "code"}),
        cr("c", "2026-11-02T00:00:00Z"),
    ]
    counted = claims_of(crs)
    assert {claim[2]: each.resource for claim, each in counted.items()} == {"chat": "b", "code": "other"}


def test_the_examples_adapters_are_valid_and_of_its_service(capsys: pytest.CaptureFixture[str]) -> None:
    folder = Path(__file__).parents[3] / "examples" / "lora-adapter"
    adapters = [adapter_of(each) for each in yaml.safe_load_all((folder / "adapters.yaml").read_text())]
    assert [each.name for each in adapters] == ["sql", "support"]
    assert invoke(["render", "-f", str(folder), "-o", "json"]) == 0
    rendered = capsys.readouterr().out
    assert "VLLM_ALLOW_RUNTIME_LORA_UPDATING" in rendered and "--enable-lora" in rendered
    objects = json.loads(rendered)["items"]
    assert {each.service for each in adapters} <= {each["metadata"]["name"] for each in objects}


MANIFESTS = """
apiVersion: inference.llmkube.dev/v1alpha1
kind: Model
metadata: {name: m}
spec: {source: "https://example.com/m.gguf"}
---
apiVersion: inference.llmkube.dev/v1alpha1
kind: InferenceService
metadata: {name: chat}
spec: {modelRef: m}
---
apiVersion: inference.llmkube.dev/v1alpha1
kind: LoRAAdapter
metadata: {name: used}
spec: {inferenceServiceRef: {name: chat}, name: sql, source: "hf://org/repo/sql.gguf"}
---
apiVersion: inference.llmkube.dev/v1alpha1
kind: LoRAAdapter
metadata: {name: mounted}
spec: {inferenceServiceRef: {name: chat}, name: law, path: /adapters/law.gguf}
"""


def test_a_rendered_service_has_its_adapters(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "x.yaml").write_text(MANIFESTS)
    assert invoke(["render", "-f", str(tmp_path / "x.yaml")]) == 0
    told = capsys.readouterr()
    assert "--lora-scaled" in told.out and "adapter-download-" in told.out
    assert "`used`" not in told.err and "LoRAAdapter `mounted`" in told.err


# --- status -----------------------------------------------------------------------------------------------------------


def status_of(
    *outcomes: AdapterOutcome | None, status: Json | None = None, now: datetime = NOW, **facts: Any
) -> dict[str, Any]:
    replicas = tuple(AdapterReplica(pod=f"p{n}", outcome=each) for n, each in enumerate(outcomes))
    made = adapter_status(cr(status=status), AdapterFacts(replicas=replicas, **facts), path="/adapters/sql", now=now)
    return dict(made)


def conditions(status: Json) -> dict[str, str]:
    return {each["type"]: each["status"] for each in status["conditions"]}


@pytest.mark.parametrize(
    ("outcomes", "phase", "loaded", "ready", "stalled"),
    [
        ((LOADED, LOADED), "Loaded", 2, "True", "False"),
        ((LOADED, None), "Loading", 1, "False", "False"),
        ((LOADED, FAILED), "Degraded", 1, "False", "False"),
        ((FAILED, None), "Loading", 0, "False", "False"),
        ((FAILED, FAILED), "Failed", 0, "False", "False"),
        ((FAILED.model_copy(update={"reason": AdapterReason.NOT_IN_ARGUMENTS}),), "Failed", 0, "False", "True"),
    ],
)
def test_a_status_counts_the_replicas(
    outcomes: tuple[AdapterOutcome | None, ...], phase: str, loaded: int, ready: str, stalled: str
) -> None:
    status = status_of(*outcomes)
    assert (status["phase"], status["loadedReplicas"], status["replicas"]) == (phase, loaded, len(outcomes))
    found = conditions(status)
    assert (found["Ready"], found["Stalled"], found["Loaded"]) == (ready, stalled, ready)
    assert status["observedGeneration"] == 2
    assert ("loadedPath" in status) == (loaded > 0)


def test_a_status_names_the_replica_that_fails_and_its_reason() -> None:
    status = status_of(LOADED, FAILED)
    ready = next(each for each in status["conditions"] if each["type"] == "Ready")
    assert ready["reason"] == "LoadUnsuccessful"
    assert ready["message"] == "1 of 2 replicas loaded the adapter; p1: rank 64 is too high"
    assert status["pods"] == [
        {"name": "p0", "loaded": True},
        {"name": "p1", "loaded": False, "message": "rank 64 is too high"},
    ]


def test_a_service_that_sleeps_is_no_failure() -> None:
    status = status_of(problem=Problem(reason="NoReplica", message="asleep"))
    assert status["phase"] == "Pending"
    assert set(conditions(status).values()) == {"False"}


def test_nothing_changes_while_nothing_changes() -> None:
    first = status_of(LOADED)
    assert first["lastLoadedAt"] == "2026-11-28T00:00:00Z"
    later = status_of(LOADED, status=first, now=NOW + timedelta(hours=1))
    assert later == first
    scaled = status_of(LOADED, None, status=first, now=NOW + timedelta(hours=1))
    assert scaled["lastLoadedAt"] == first["lastLoadedAt"]
    again = status_of(LOADED, LOADED, status=scaled, now=NOW + timedelta(hours=2))
    assert again["lastLoadedAt"] == "2026-11-28T02:00:00Z"


def test_conditions_of_llmkube_are_removed() -> None:
    old = {"conditions": [{"type": "Available", "status": "True"}, {"type": "Error", "status": "False"}]}
    assert set(conditions(status_of(LOADED, status=old))) == {"Ready", "Reconciling", "Stalled", "Loaded"}
