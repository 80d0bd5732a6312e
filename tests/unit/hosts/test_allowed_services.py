"""Services that need more than a host allows: the field and the reason of the refusal, and when it ends."""

from __future__ import annotations

from typing import Any

import pytest

from automation.hosts.registry import HostRegistry
from program.desired.engines import Generic, LlamaCpp, Ollama, Omlx, Vllm
from program.desired.errors import SpecInvalid
from program.desired.keys import ServiceKey
from program.desired.model import GgufFacts
from program.desired.service import HostPlacement, PodSettings
from program.manifests import Manifests
from program.runtimes.host_rules import UNRESTRICTED
from tests.support.builders import http_model, repository_model, service
from tests.unit.hosts.test_registry import Watched, host, lease

GIB = 1 << 30
HEADER = GgufFacts(architecture="llama", layer_count=2, embedding_size=64, head_count=4, weights_bytes=GIB)
PINNED = HostPlacement(host="mac", pinned=True)
TOOLS = LlamaCpp(extra_args=("-t", "4", "--tools", "all"))


def watched(*hosts: tuple[str, dict[str, Any]]) -> Watched:
    made = Watched()
    for name, allow in hosts:
        made.registry.lease_changed(None, lease(name))
        made.registry.host_changed(None, host(name, **({"allow": allow} if allow else {})))
    made.told()
    return made


def refused(made: Watched, **fields: Any) -> SpecInvalid:
    with pytest.raises(SpecInvalid) as caught:
        made.place(**fields)
    return caught.value


@pytest.mark.parametrize(
    ("fields", "field", "what"),
    [
        ({"engine": TOOLS}, "spec.extraArgs[2]", "flag `--tools`"),
        ({"engine": LlamaCpp(extra_args=("--log-file=/x",))}, "spec.extraArgs[0]", "flag `--log-file`"),
        ({"engine": LlamaCpp(extra_args=("-m", "/etc/passwd"))}, "spec.extraArgs[0]", "path `/etc/passwd` of `-m`"),
        ({"engine": LlamaCpp(extra_args=("--jinja", "x"))}, "spec.extraArgs[1]", "flag `x`"),
        (
            {"engine": Vllm(extra_args=("--trust_remote_code",)), "model": repository_model()},
            "spec.extraArgs[0]",
            "flag `--trust_remote_code`",
        ),
        (
            {"engine": Vllm(extra_args=("--chat_template", "/etc/passwd")), "model": repository_model()},
            "spec.extraArgs[0]",
            "flag `--chat-template`",
        ),
        ({"engine": Omlx(paged_ssd_cache_dir="/home/me")}, "spec.pagedSSDCacheDir", "path `/home/me`"),
        (
            {"pod": PodSettings(env=({"name": "A", "value": "1"}, {"name": "LD_PRELOAD", "value": "/x"}))},
            "spec.env[0]",
            "variable `A`",
        ),
        (
            {"engine": Ollama(), "pod": PodSettings(env=({"name": "OLLAMA_MODELS", "value": "/x"},))},
            "spec.env[0]",
            "variable `OLLAMA_MODELS`",
        ),
        (
            {"pod": PodSettings(env=({"name": "DYLD_INSERT_LIBRARIES", "valueFrom": {"secretKeyRef": {}}},))},
            "spec.env[0]",
            "variable `DYLD_INSERT_LIBRARIES`",
        ),
        ({"engine": Generic(), "command": ("/bin/sh", "-c", "id")}, "spec.runtime", "runtime `generic`"),
    ],
)
def test_what_a_host_does_not_allow_is_refused_at_its_field(fields: Any, field: str, what: str) -> None:
    error = refused(watched(("mac", {})), host_placement=PINNED, **fields)
    assert error.reason == "NotAllowedOnHost"
    assert error.field == field
    assert error.why.startswith(f"host `mac` does not allow {what}")
    # A host without a Host object does not allow it either.
    assert refused(watched(), host_placement=PINNED, **fields).field == field


def test_a_command_is_refused_where_only_the_runtime_is_allowed() -> None:
    made = watched(("mac", {"runtimes": ["generic"]}))
    fields = {"engine": Generic(), "command": ("/bin/sh", "-c", "id"), "host_placement": PINNED}
    assert refused(made, **fields).field == "spec.command"
    made.registry.host_changed(host(allow={"runtimes": ["generic"]}), host(allow=GENERIC))
    assert made.told() == ["svc"]
    assert made.place(**fields)[0].host_placement.host == "mac"


GENERIC = {"runtimes": ["generic"], "commands": ["/bin/sh"]}


def test_what_a_host_allows_is_placed_there() -> None:
    made = watched(("mac", {}), ("open", {"flags": ["--tools"]}))
    assert made.place(engine=TOOLS)[0].host_placement.host == "open"
    made = watched(("mac", {}), ("box", {"flags": ["--path"]}))
    error = refused(made, engine=TOOLS)
    assert error.field == "spec.extraArgs[2]"
    assert (
        error.why == "no host allows flag `--tools`; the owner of a host can allow it in spec.allow.flags of the Host"
    )
    assert made.registry.allocations.waiting() == (ServiceKey("llmkube", "ns", "svc"),)
    made.registry.host_changed(host("box", allow={"flags": ["--path"]}), host("box", allow={"flags": ["--tools"]}))
    assert "svc" in made.told()
    assert made.place(engine=TOOLS)[0].host_placement.host == "box"


def test_hosts_that_refuse_are_counted_beside_those_that_do_not_fit() -> None:
    made = watched(("mac", {}), ("open", {"flags": ["--tools"]}))
    made.registry.host_changed(host("open"), host("open", allow={"flags": ["--tools"]}, unschedulable=True))
    _, decision = made.place(engine=TOOLS)
    assert str(decision.refusals) == "0/2 hosts fit: 1 does not allow flag `--tools`, 1 is unschedulable"


def test_a_replica_leaves_a_host_whose_owner_allows_it_no_longer() -> None:
    made = watched(("open", {"flags": ["--tools"]}))
    assert made.place(engine=TOOLS)[0].host_placement.host == "open"
    made.registry.host_changed(host("open", allow={"flags": ["--tools"]}), host("open"))
    assert made.told() == ["svc"]
    assert refused(made, engine=TOOLS).why.startswith("host `open` does not allow flag `--tools`")
    made.registry.lease_changed(None, lease("box"))
    made.registry.host_changed(None, host("box", allow={"flags": ["--tools"]}))
    assert made.place(engine=TOOLS)[0].host_placement.host == "box"


def of(registry: HostRegistry, namespace: str, **fields: Any) -> Any:
    values = {"host_placement": HostPlacement(), "model": http_model(gguf=HEADER), **fields}
    return registry.place(service(key=ServiceKey("llmkube", namespace, "svc"), **values))


def test_a_host_for_some_namespaces_takes_no_service_of_others() -> None:
    made = watched(("mac", {"namespaces": ["prod"]}))
    assert of(made.registry, "prod")[0].host_placement.host == "mac"
    _, decision = of(made.registry, "dev")
    assert str(decision.refusals) == "0/1 hosts fit: 1 does not allow namespace dev"
    with pytest.raises(SpecInvalid, match="host `mac` does not allow namespace `dev`") as caught:
        of(made.registry, "dev", host_placement=PINNED)
    assert caught.value.field == "metadata.namespace"
    made.told()
    made.registry.host_changed(host(allow={"namespaces": ["prod"]}), host())
    assert "svc" in made.told()
    assert of(made.registry, "dev", host_placement=PINNED)[0].host_placement.host == "mac"


def test_a_selector_of_namespaces_follows_their_labels() -> None:
    labels: dict[str, dict[str, str]] = {"dev": {"team": "b"}}
    made = watched(("mac", {"namespaceSelector": {"matchLabels": {"team": "a"}}}))
    made.registry.allocations.namespace_labels = lambda name: labels.get(name, {})
    assert "does not allow namespace dev" in str(of(made.registry, "dev")[1].refusals)
    labels["dev"] = {"team": "a"}
    made.registry.namespace_changed("dev")
    assert made.told() == ["svc"]
    assert of(made.registry, "dev")[0].host_placement.host == "mac"
    labels["dev"] = {}
    made.registry.namespace_changed("dev")
    with pytest.raises(SpecInvalid):
        of(made.registry, "dev")


def test_a_host_whose_processes_would_run_as_root_takes_none_unless_its_owner_allows_it() -> None:
    made = watched()
    made.registry.lease_changed(None, lease())
    made.registry.host_changed(None, host(transport="ssh", ssh={"user": "root"}))
    assert "1 does not allow processes as root" in str(made.place()[1].refusals)
    made.registry.host_changed(
        host(transport="ssh", ssh={"user": "root"}), host(transport="ssh", ssh={"user": "root", "allowRoot": True})
    )
    assert made.place()[0].host_placement.host == "mac"


MODEL = """
apiVersion: inference.llmkube.dev/v1alpha1
kind: Model
metadata: {name: m}
spec: {source: "https://example.com/m.gguf"}
---
"""
SERVICE = """
apiVersion: inference.llmkube.dev/v1alpha1
kind: InferenceService
metadata: {name: s, annotations: {herdsman.dev/host: mac}}
spec: {modelRef: m, extraArgs: ["--tools", "all"]}
"""
HOST = """---
apiVersion: herdsman.dev/v1alpha1
kind: Host
metadata: {name: mac}
spec: {allow: {flags: ["--tools"]}}
"""


def test_files_are_held_to_the_same_rule() -> None:
    plain, allowed = Manifests("default"), Manifests("default")
    plain.read_text("a.yaml", MODEL + SERVICE)
    allowed.read_text("a.yaml", MODEL + SERVICE + HOST)
    (_, desired), (_, also) = next(iter(plain.services())), next(iter(allowed.services()))
    with pytest.raises(SpecInvalid, match=r"spec.extraArgs\[0\]: host `mac` does not allow flag `--tools`"):
        plain.check_allowed(desired)
    plain.check_allowed(desired, default=UNRESTRICTED)
    allowed.check_allowed(also)
    assert not allowed.errors
    assert not [note for note in allowed.notes if "Host" in note]
