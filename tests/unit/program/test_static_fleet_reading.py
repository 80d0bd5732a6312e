"""The config of a static fleet and its services: names, clusters, hosts, marks, options without effect, errors."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import yaml

from components import naming, urns
from components.providers.kubernetes_ownership import held_elsewhere
from components.registrations import provider_version
from program.__main__ import checkpoint_hint
from program.static.config import FleetConfig, read_config
from program.static.outputs import stack_outputs
from program.static.plugin import missing_plugin_words
from program.static.reading import Fleet, read_fleet

API = "inference.llmkube.dev/v1alpha1"


def config(root: Path, **values: Any) -> FleetConfig:
    return read_config({k: v if isinstance(v, str) else json.dumps(v) for k, v in values.items()}, root)


def fleet(root: Path, *services: dict[str, Any], **values: Any) -> Fleet:
    model = {"apiVersion": API, "kind": "Model", "metadata": {"name": "m"}, "spec": {"source": "https://e.org/m.gguf"}}
    documents = [
        {"apiVersion": API, "kind": "InferenceService", **each, "spec": {"modelRef": "m", **each.get("spec", {})}}
        for each in services
    ]
    (root / "all.yaml").write_text(yaml.safe_dump_all([model, *documents]))
    return read_fleet(config(root, manifests="all.yaml", **values), root, stack="p/s")


def test_one_path_a_list_and_a_pattern_are_paths(tmp_path: Path) -> None:
    for written, read in (("a.yaml", ("a.yaml",)), (["a", "b"], ("a", "b")), ("[ab].yaml", ("[ab].yaml",))):
        (cluster,) = config(tmp_path, manifests=written).clusters
        assert cluster.manifests == read


def test_a_fleet_of_named_clusters_has_no_other(tmp_path: Path) -> None:
    found = config(tmp_path, clusters={"eu": {"manifests": "eu", "kubeconfig": "k", "extensions": ["a.b/v1/C"]}})
    assert not found.errors
    (cluster,) = found.clusters
    assert cluster.name == "eu" and cluster.kubeconfig == str(tmp_path / "k")
    assert cluster.options.installed == {"a.b/v1/C"}


def test_a_fleet_is_for_herdsmans_plugin_unless_the_config_names_the_other(tmp_path: Path) -> None:
    found = config(tmp_path, manifests="x")
    assert not found.errors and found.plugin.version == f"{provider_version()}-herdsman"
    found = config(tmp_path, manifests="x", kubernetesPlugin="pulumi")
    assert not found.errors and not found.notes and found.plugin.version == provider_version()
    for wrong in ("Pulumi", ["pulumi"], {"a": 1}):
        found = config(tmp_path, manifests="x", kubernetesPlugin=wrong)
        (error,) = found.errors
        assert error.startswith("herdsman:kubernetesPlugin: ") and error.endswith("neither `herdsman` nor `pulumi`")


def test_an_engine_that_can_find_no_plugin_is_told_of(tmp_path: Path) -> None:
    plugin = tmp_path / "pulumi-resource-kubernetes"
    plugin.touch(mode=0o755)
    for environment in ({}, {"PATH": "/nowhere"}, {"PATH": str(tmp_path), "PULUMI_IGNORE_AMBIENT_PLUGINS": "true"}):
        assert "herdsman provider path" in missing_plugin_words(environment)
    for environment in ({"PATH": str(tmp_path)}, {"PULUMI_DEBUG_PROVIDERS": "kubernetes:1,herdsman:2"}):
        assert missing_plugin_words(environment) == ""


def test_the_way_to_a_host_is_inputs_of_its_processes(tmp_path: Path) -> None:
    ssh = {"transport": "ssh", "address": "h", "user": "u", "identityFile": "~/k", "knownHosts": "known"}
    found = config(tmp_path, manifests="x", hosts={"a": ssh})
    assert not found.errors
    assert found.hosts["a"] == {
        "transport": "ssh",
        "ssh": {"address": "h", "user": "u", "identityFile": "~/k", "knownHosts": str(tmp_path / "known")},
    }
    wrong = config(tmp_path, manifests="x", hosts={"a": {**ssh, "tokenFile": "t"}, "b": {"endpoint": "https://b"}})
    assert [e.partition(": ")[0] for e in wrong.errors] == ["herdsman:hosts.a.tokenFile", "herdsman:hosts.b.tokenFile"]


def test_options_are_the_renderers(tmp_path: Path) -> None:
    said = {"cacheSize": "1Ti", "initImage": "curl:1", "monitors": False}
    (cluster,) = config(tmp_path, manifests="x", options=said).clusters
    assert (cluster.options.cache_size, cluster.options.init_image, cluster.options.monitors) == (
        "1Ti",
        "curl:1",
        False,
    )


def test_names_in_the_stacks_own_namespace_are_as_before(tmp_path: Path) -> None:
    read = fleet(tmp_path, {"metadata": {"name": "chat"}}, namespace="prod")
    (placed,) = read.services
    names = {urns.object_name(placed.rendered.key, obj, at=placed.at) for obj in placed.rendered.objects}
    assert names == {"llmkube/chat/service", "llmkube/chat/deployment"}
    assert {obj.manifest["metadata"]["annotations"][naming.ANNOTATION_FLEET] for obj in placed.rendered.objects} == {
        "p/s"
    }
    assert naming.place_suffix("prod", "eu") == "@prod@eu"


def test_a_host_of_the_config_gets_no_object_of_a_cluster(tmp_path: Path) -> None:
    host = {"transport": "ssh", "address": "h", "user": "u", "identityFile": "~/k"}
    on_host = {
        "metadata": {"name": "desk", "annotations": {"herdsman.dev/host": "a", "herdsman.dev/idle-timeout": "5m"}}
    }
    read = fleet(tmp_path, on_host, hosts={"a": host})
    assert not read.errors
    (placed,) = read.services
    assert "annotations" not in placed.rendered.objects[0].manifest["metadata"] or (
        naming.ANNOTATION_FLEET not in placed.rendered.objects[0].manifest["metadata"]["annotations"]
    )
    assert any("idle-timeout]: has no effect in a static fleet: only an agent" in note for note in read.notes)


def test_what_takes_a_loop_is_said(tmp_path: Path) -> None:
    annotations = {"herdsman.dev/rollback": "true", "herdsman.dev/mode": "Preview"}
    read = fleet(tmp_path, {"metadata": {"name": "chat", "annotations": annotations}})
    assert not read.errors
    for name in annotations:
        assert any(f"metadata.annotations[{name}]: has no effect in a static fleet" in note for note in read.notes), (
            name
        )


def test_a_mark_and_a_controller_say_whose_an_object_is() -> None:
    def obj(mark: str = "", owner: str = "") -> dict[str, Any]:
        controller = {"apiVersion": API, "kind": "InferenceService", "name": owner, "uid": owner, "controller": True}
        annotations = {naming.ANNOTATION_FLEET: mark} if mark else {}
        return {"metadata": {"annotations": annotations, "ownerReferences": [controller] if owner else []}}

    assert held_elsewhere(obj(), obj()) == ""
    assert held_elsewhere(obj("p/s"), obj("p/s")) == ""
    assert held_elsewhere(obj("taken"), obj("p/s")) == "", "a fleet takes the services that a loop released"
    assert held_elsewhere(obj(owner="chat"), obj(owner="chat")) == ""
    assert held_elsewhere(obj("taken"), obj(owner="chat")) == "a static fleet that has not created it yet"
    assert held_elsewhere(obj("p/s"), obj(owner="chat")) == "static fleet `p/s`"
    assert held_elsewhere(obj("p/other"), obj("p/s")) == "static fleet `p/other`"
    assert held_elsewhere(obj(owner="chat"), obj("p/s")) == "controller InferenceService `chat`"
    loops = {"metadata": {"name": "a-binding"}}
    assert "a loop" in held_elsewhere(loops, obj("p/s")), "in no namespace nothing has a controller"
    assert held_elsewhere({"metadata": {"namespace": "ns"}}, obj("p/s")) == ""
    assert held_elsewhere(loops, loops) == ""


def test_a_large_fleet_without_skipped_checkpoints_says_so(tmp_path: Path) -> None:
    small = fleet(tmp_path, {"metadata": {"name": "chat"}})
    large = fleet(tmp_path, *({"metadata": {"name": f"chat-{number}"}} for number in range(60)))
    assert checkpoint_hint(small, {}) == ""
    assert "PULUMI_SKIP_CHECKPOINTS=true" in checkpoint_hint(large, {})
    assert "PULUMI_SKIP_CHECKPOINTS=true" in checkpoint_hint(large, {"PULUMI_SKIP_CHECKPOINTS": "false"})
    assert checkpoint_hint(large, {"PULUMI_SKIP_CHECKPOINTS": "true"}) == ""


def test_outputs_name_endpoints_models_and_namespaces_without_secrets(tmp_path: Path) -> None:
    (tmp_path / "all.yaml").write_text(
        yaml.safe_dump_all(
            [
                {
                    "apiVersion": API,
                    "kind": "Model",
                    "metadata": {"name": "m"},
                    "spec": {"source": "https://e.org/m.gguf?signature=s3cret"},
                },
                {
                    "apiVersion": API,
                    "kind": "InferenceService",
                    "metadata": {"name": "chat"},
                    "spec": {"modelRef": "m"},
                },
            ]
        )
    )
    read = read_fleet(config(tmp_path, clusters={"eu": {"manifests": "all.yaml"}}), tmp_path, stack="p/s")
    assert not read.errors, read.errors
    found = stack_outputs(read.services, {})
    assert found == {
        "endpoints": {"eu/default/chat": "http://chat.default.svc.cluster.local:8080/v1/chat/completions"},
        "models": {"eu/default/chat": {"name": "m", "source": "https://e.org/m.gguf"}},
        "namespaces": ["eu/default"],
    }
