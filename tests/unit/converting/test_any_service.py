"""Any service can be converted, and the result parsed, rendered and converted again; or the conversion is refused."""

from __future__ import annotations

import functools
import json
from contextlib import suppress
from pathlib import Path
from typing import Any, get_args

import pytest
import yaml
from hypothesis import given, settings
from hypothesis import strategies as st

from components.options import RenderOptions
from components.render import render
from program.desired.errors import DesiredError, SpecInvalid
from program.dialects.converting.convert import Conversion, Target, describe, write
from program.dialects.converting.description import ENGINES, Description, Scaling, Source, Weights
from program.dialects.registry import DIALECTS, LLMKUBE
from program.manifests import Manifests

ROOT = Path(__file__).parents[3]
TARGETS: tuple[Target, ...] = get_args(Target)
LABELS = st.from_regex(r"[a-z][a-z0-9-]{0,61}[a-z0-9]", fullmatch=True)
NAMES = LABELS | st.sampled_from(["a", "a.b", "7b", "x" * 60, "y" * 61, "z" * 63])
WORDS = st.text(alphabet="abz019-_=/.{} '\"$\\é", min_size=1, max_size=12)
QUANTITIES = st.sampled_from(["1", "500m", "2Gi", "1e3"])
SOURCES = st.builds(
    Source,
    kind=st.sampled_from(["hub", "modelscope"]),
    address=st.sampled_from(["acme/tiny", "acme/tiny-GGUF", "acme/Tiny.v2"]),
    revision=st.sampled_from(["", "v1", "refs/pr/1"]),
    file=st.sampled_from(["", "a.gguf", "sub/a.gguf", "a.safetensors"]),
    files=st.sampled_from([(), ("a.gguf", "b.gguf"), ("config.json",)]),
) | st.sampled_from(
    [
        Source(kind="http", address="https://example.com/a.gguf"),
        Source(kind="s3", address="bucket/a/b.gguf"),
        Source(kind="s3", address="bucket/a", file="b.gguf"),
        Source(kind="s3", address="b/a"),
        Source(kind="oss", address="bucket.endpoint/a"),
        Source(kind="gcs", address="bucket/a"),
        Source(kind="pvc", address="claim/a.gguf"),
        Source(kind="pvc", address="claim"),
        Source(kind="path", address="/srv/a.gguf"),
        Source(kind="ollama", address="qwen2:0.5b"),
        Source(kind="ollama", address="me/own"),
        Source(kind="oci", address="registry.example/a:1"),
    ]
)
WEIGHTS = st.builds(Weights, name=WORDS, source=SOURCES)
METRICS: st.SearchStrategy[Any] = st.sampled_from(
    [
        {"type": "Resource", "resource": {"name": "cpu", "target": {"type": "Utilization", "averageUtilization": 60}}},
        {"type": "Resource", "resource": {"name": "memory", "target": {"type": "AverageValue", "averageValue": "1Gi"}}},
        {"type": "Pods", "pods": {"metric": {"name": "queue"}, "target": {"type": "AverageValue", "averageValue": 2}}},
        {"type": "External", "external": {"metric": {"name": "q"}, "target": {"type": "Value", "value": "1"}}},
        {"type": "ContainerResource", "containerResource": {"name": "cpu", "container": "c"}},
        {},
    ]
)
SCALINGS = st.builds(
    lambda low, more, metrics, behavior: Scaling(
        min_replicas=low, max_replicas=max(1, low + more), metrics=tuple(metrics), behavior=behavior
    ),
    st.integers(0, 12),
    st.integers(0, 200),
    st.lists(METRICS, max_size=3),
    st.none() | st.just({"scaleDown": {"stabilizationWindowSeconds": 60}}),
)
FLAGS = st.sampled_from(
    [
        ["--tensor-parallel-size", "2"],
        ["--pipeline-parallel-size", "2"],
        ["--data-parallel-size", "0"],
        ["--enable-expert-parallel"],
        ["--max-lora-rank", "x"],
        ["--ctx-size", "64"],
        ["--max-model-len", "4096"],
        ["--served-model-name", "a", "b"],
        ["--speculative-config", "{"],
        ["--spec-draft-n-max", "4"],
        ["--", "-1"],
        ["--x=-y"],
        ["plain"],
    ]
)
SHM = {"name": "dshm", "mountPath": "/dev/shm"}
PROBE = {"httpGet": {"path": "/health", "port": 9000}}
PODS: st.SearchStrategy[Any] = st.fixed_dictionaries(
    {},
    optional={
        "nodeSelector": st.just({"disk": "ssd"}),
        "tolerations": st.just([{"key": "gpu", "operator": "Exists"}]),
        "volumes": st.just([{"name": "dshm", "emptyDir": {}}, {"name": "model-cache", "emptyDir": {}}]),
        "priorityClassName": st.just("high"),
        "imagePullSecrets": st.just([{"name": "s"}]),
    },
)
SERVICES = st.builds(
    Description,
    document=st.just("Thing `a`"),
    dialect=st.sampled_from(["llmkube", "kserve", "llmaz", "llmaz-service"]),
    name=NAMES,
    namespace=st.just("team"),
    source=SOURCES,
    engine=st.sampled_from(ENGINES),
    annotations=st.sampled_from(
        [{}, {"herdsman.dev/host": "mac"}, {"herdsman.dev/host-selector": "a=b"}, {"herdsman.dev/host": "No!"}]
    ),
    model_name=st.just("") | NAMES | WORDS,
    served_name=st.just("") | WORDS,
    image=st.sampled_from(["", "own:1", "registry.example:5000/own", "own@sha256:" + "0" * 64]),
    command=st.sampled_from([(), ("serve", "--x"), ("sh", "-c", "{{ .ModelPath }}")]),
    args=st.lists(FLAGS | st.lists(WORDS, max_size=2), max_size=4).map(
        lambda many: tuple(word for words in many for word in words)
    ),
    env=st.sampled_from([(), ({"name": "A", "value": "{{ .X }}"}, {"name": "HF_TOKEN", "value": "t"})]),
    hub_token=st.none() | st.just({"name": "s", "key": "k"}),
    requests=st.dictionaries(st.sampled_from(["cpu", "memory", "ephemeral-storage"]), QUANTITIES),
    limits=st.dictionaries(st.sampled_from(["cpu", "memory", "ephemeral-storage"]), st.just("1e6")),
    gpus=st.sampled_from([0, 1, 2, 16]),
    gpu_resource=st.sampled_from(["nvidia.com/gpu", "amd.com/gpu", "example.com/npu"]),
    shared_memory=st.sampled_from(["", "2Gi"]),
    port=st.sampled_from([0, 8000, 9000]),
    probes=st.dictionaries(st.sampled_from(["startup", "liveness", "readiness"]), st.just(PROBE)),
    replicas=st.integers(0, 12),
    scaling=st.none() | SCALINGS,
    draft=st.none() | WEIGHTS,
    adapters=st.lists(WEIGHTS, max_size=2, unique_by=lambda each: each.name).map(tuple),
    pod=PODS,
    security=st.sampled_from([{}, {"runAsUser": 1000}, {"runAsNonRoot": False}, {"capabilities": {"drop": ["ALL"]}}]),
    volume_mounts=st.sampled_from([(), (SHM,), ({"name": "model-cache", "mountPath": "/x"},)]),
    pod_labels=st.sampled_from([{}, {"a": "b"}]),
    pod_annotations=st.sampled_from([{}, {"a": "{{ b }}"}]),
)


def read(documents: Any) -> Manifests:
    """Read documents as `herdsman render` does, from the text that `herdsman convert` prints."""
    found = Manifests("default")
    # JSON is valid YAML, and much faster to write.
    found.read_text("converted", json.dumps({"kind": "List", "items": list(documents)}))
    for _, desired in found.services():
        render(desired, RenderOptions())
    return found


def assert_told(error: SpecInvalid) -> None:
    assert error.field
    assert error.why


def descriptions(found: Manifests) -> list[Description]:
    services = []
    for dialect in DIALECTS:
        for document in found.services_of(dialect):
            services.append(describe(dialect, document.cr, look=found))
    return services


@settings(max_examples=150, deadline=None)
@given(service=SERVICES, target=st.sampled_from(TARGETS))
def test_any_service_becomes_one_that_can_be_read_or_is_refused_with_a_why(
    service: Description, target: Target
) -> None:
    try:
        converted = write(service, target)
    except SpecInvalid as error:
        assert_told(error)
        return
    found = read(converted.documents)
    assert found.errors == []
    (after,) = descriptions(found)
    assert (after.name, after.namespace) == (service.name, service.namespace)
    for loss in converted.losses:
        assert loss.document
        assert loss.field
        assert loss.why


def inputs() -> list[tuple[str, Any]]:
    """List the inputs of all vectors and examples."""
    conformance = ROOT / "tests" / "conformance"
    found = [(f"{path.parent.name}-{path.stem}", json.loads(path.read_text())) for path in conformance.rglob("*.json")]
    cases: list[tuple[str, Any]] = [(name, vector["input"]) for name, vector in found if "input" in vector]
    for path in (ROOT / "examples").glob("*/*.yaml"):
        if path.name != "config.yaml":
            cases.append((f"{path.parent.name}-{path.stem}", list(yaml.safe_load_all(path.read_text()))))
    return sorted(cases, key=lambda case: case[0])


@functools.cache
def all_services() -> tuple[tuple[str, Description], ...]:
    """Describe each service of the inputs that its dialect accepts."""
    services = []
    for name, documents in inputs():
        found = Manifests("default")
        found.read_text(name, json.dumps({"kind": "List", "items": documents}, default=str))
        for dialect in DIALECTS:
            for document in found.services_of(dialect):
                # Many vectors contain invalid services.
                with suppress(DesiredError):
                    service = describe(dialect, document.cr, look=found)
                    services.append((name, service))
    return tuple(services)


@pytest.mark.parametrize("target", TARGETS)
def test_each_service_of_a_vector_or_example_goes_on_from_one_dialect_to_the_next(target: Target) -> None:
    assert sum(goes_on(name, service, target) for name, service in all_services()) > 50


def goes_on(name: str, service: Description, target: Target) -> bool:
    """Convert a service to `target`, and the result to the other dialects; return False if the first is impossible."""
    if service.dialect.startswith(target):
        return False
    try:
        there = read(write(service, target).documents)
    except SpecInvalid as error:
        assert_told(error)
        return False
    assert there.errors == [], name
    (after,) = descriptions(there)
    # Services of LLMKube's vectors are converted once: they differ in fields that no other dialect has.
    for further in TARGETS if service.dialect != LLMKUBE or name[0].isdigit() else ():
        if further == target:
            continue
        try:
            last = read(write(after, further).documents)
        except SpecInvalid:
            continue
        assert last.errors == [], f"{name} to {target} to {further}"
    return True


def test_models_of_one_name_that_are_not_the_same_are_written_under_two() -> None:
    def service(name: str, namespace: str, address: str) -> Description:
        return Description(
            document=f"InferenceService `{name}`",
            dialect="llmkube",
            name=name,
            namespace=namespace,
            source=Source(kind="hub", address=address),
            engine="vllm",
            model_name="tiny",
        )

    writing = Conversion("llmaz")
    written = [
        writing.write(service(name, namespace, address)).documents
        for name, namespace, address in (
            ("chat", "one", "acme/a"),
            ("more", "one", "acme/a"),
            ("chat", "two", "acme/b"),
            ("chat", "three", "acme/c"),
        )
    ]
    models = [documents[0]["metadata"]["name"] for documents in written]
    assert models == ["tiny", "tiny", "tiny-chat", "tiny-chat-three"]
    assert [documents[-1]["spec"]["modelClaim"]["modelName"] for documents in written] == models
    with pytest.raises(SpecInvalid) as raised:
        writing.write(service("chat", "one", "acme/d"))
    assert raised.value.field == "metadata.name"
    assert "the conversion of InferenceService `chat` already makes Playground `chat`" in raised.value.why
