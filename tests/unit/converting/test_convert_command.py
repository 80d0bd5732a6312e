"""`herdsman convert`: the printed manifests, the named losses, and the exit codes."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import yaml
from typer.testing import CliRunner, Result

from automation.cli.main import application
from program.manifests import Manifests

ROOT = Path(__file__).parents[3]


def kinds_of(path: Path) -> set[str]:
    documents = yaml.safe_load_all(path.read_text())
    return {str(each.get("kind")) for each in documents if isinstance(each, dict)}


def convert(*arguments: str, text: str | None = None) -> Result:
    return CliRunner().invoke(application(["convert", "render"]), ["convert", *arguments], input=text)


def manifest(**spec: Any) -> str:
    documents = [
        {
            "apiVersion": "inference.llmkube.dev/v1alpha1",
            "kind": "Model",
            "metadata": {"name": "tiny"},
            "spec": {"source": "hf://acme/tiny@v1/tiny.gguf"},
        },
        {
            "apiVersion": "inference.llmkube.dev/v1alpha1",
            "kind": "InferenceService",
            "metadata": {"name": "chat", "namespace": "team", "labels": {"team": "a"}},
            "spec": {"modelRef": "tiny", "contextSize": 4096, "resources": {"cpu": "2"}, **spec},
        },
    ]
    return yaml.safe_dump_all([{**d, "metadata": {"namespace": "team", **d["metadata"]}} for d in documents])


def test_llmkube_to_kserve_word_by_word() -> None:
    result = convert("-f", "-", "--to", "kserve", "--strict", text=manifest())
    assert result.exit_code == 0, result.stderr
    assert result.stderr == ""
    assert yaml.safe_load(result.stdout) == {
        "apiVersion": "serving.kserve.io/v1alpha2",
        "kind": "LLMInferenceService",
        "metadata": {"name": "chat", "namespace": "team", "labels": {"team": "a"}},
        "spec": {
            "model": {"uri": "hf://acme/tiny:v1"},
            "template": {
                "containers": [
                    {
                        "name": "main",
                        "image": "ghcr.io/ggml-org/llama.cpp:server",
                        "command": ["/app/llama-server"],
                        "args": [
                            *("--model", "/mnt/models/tiny.gguf", "--host", "0.0.0.0", "--port", "8000"),
                            *("--ctx-size", "4096"),
                        ],
                        "securityContext": {"runAsNonRoot": False},
                        "resources": {"requests": {"cpu": "2"}},
                    }
                ]
            },
        },
    }


def test_llmkube_to_llmaz_and_back() -> None:
    there = convert("-f", "-", "--to", "llmaz", "--strict", text=manifest(replicas=2))
    assert there.exit_code == 0, there.stderr
    model, playground = yaml.safe_load_all(there.stdout)
    assert model["spec"]["source"]["modelHub"] == {"modelID": "acme/tiny", "filename": "tiny.gguf", "revision": "v1"}
    assert playground["spec"] == {
        "replicas": 2,
        "modelClaim": {"modelName": "tiny"},
        "backendRuntimeConfig": {
            "backendName": "llamacpp",
            "args": ["--ctx-size", "4096"],
            "resources": {"requests": {"cpu": "2"}},
        },
    }
    back = convert("-f", "-", "--to", "llmkube", text=there.stdout)
    assert back.exit_code == 0, back.stderr
    model, service = yaml.safe_load_all(back.stdout)
    assert model["spec"] == {"source": "hf://acme/tiny@v1/tiny.gguf", "format": "gguf"}
    assert service["spec"]["contextSize"] == 4096
    assert service["spec"]["resources"]["cpu"] == "2"


def test_what_is_lost_is_named_and_counts_only_when_asked() -> None:
    text = manifest(autoscaling={"maxReplicas": 3}, priority="high", slo={"objective": "99.5"})
    lax = convert("-f", "-", "--to", "kserve", text=text)
    assert lax.exit_code == 0
    told = lax.stderr.splitlines()
    assert [line.split(": ")[2] for line in told] == ["spec.priority", "spec.slo", "spec.autoscaling"]
    assert all(line.startswith("Lost: InferenceService `chat`: spec.") for line in told)
    assert convert("-f", "-", "--to", "kserve", "--strict", text=text).exit_code == 2


def test_json_names_losses_as_json_too() -> None:
    result = convert("-f", "-", "--to", "kserve", "-o", "json", text=manifest(priority="high"))
    assert json.loads(result.stdout)["items"][0]["kind"] == "LLMInferenceService"
    assert json.loads(result.stderr) == {
        "lost": [{"document": "InferenceService `chat`", "field": "spec.priority", "why": "only LLMKube has it"}]
    }


@pytest.mark.parametrize(
    ("text", "to", "why"),
    [
        (manifest(), "llmkube", "is already in the dialect llmkube"),
        (
            manifest().replace("hf://acme/tiny@v1/tiny.gguf", "https://example.com/m.gguf"),
            "llmaz",
            "cannot fetch `http`",
        ),
        (manifest(runtime="omlx"), "kserve", "spec.runtime"),
        ("apiVersion: v1\nkind: Pod\nmetadata: {name: a}\n", "kserve", "the files contain no service"),
        ("a: [", "kserve", "is not YAML"),
    ],
)
def test_what_cannot_be_converted_prints_nothing(text: str, to: str, why: str) -> None:
    result = convert("-f", "-", "--to", to, text=text)
    assert result.exit_code == 1
    assert result.stdout == ""
    assert why in result.stderr


def test_a_dialect_that_nobody_knows_is_wrong_usage() -> None:
    assert convert("-f", "-", "--to", "seldon", text=manifest()).exit_code == 2


def test_a_base_config_is_part_of_its_service() -> None:
    documents = [
        {
            "apiVersion": "serving.kserve.io/v1alpha2",
            "kind": "LLMInferenceServiceConfig",
            "metadata": {"name": "base", "namespace": "team"},
            "spec": {"template": {"containers": [{"name": "main", "env": [{"name": "A", "value": "1"}]}]}},
        },
        {
            "apiVersion": "serving.kserve.io/v1alpha2",
            "kind": "LLMInferenceService",
            "metadata": {"name": "chat", "namespace": "team"},
            "spec": {
                "baseRefs": [{"name": "base"}],
                "model": {"uri": "hf://acme/tiny", "name": "acme/Tiny"},
                "router": {"route": {}, "scheduler": {}},
                "template": {"containers": [{"name": "main", "args": ["--max-model-len", "2048"]}]},
            },
        },
    ]
    result = convert("-f", "-", "--to", "llmkube", text=yaml.safe_dump_all(documents))
    assert result.exit_code == 0, result.stderr
    model, service = yaml.safe_load_all(result.stdout)
    assert model["metadata"]["name"] == service["spec"]["modelRef"] == "acme-tiny"
    assert service["spec"]["env"] == [{"name": "A", "value": "1"}]
    assert service["spec"]["vllmConfig"] == {"maxModelLen": 2048}
    assert service["spec"]["extraArgs"] == ["--served-model-name", "acme/Tiny"]
    assert result.stderr.splitlines() == ["Lost: LLMInferenceService `chat`: spec.router: only KServe has it"]
    missing = convert("-f", "-", "--to", "llmkube", text=yaml.safe_dump(documents[1]))
    assert missing.exit_code == 1
    assert "spec.baseRefs[0].name: LLMInferenceServiceConfig `base` is not among the files" in missing.stderr


def test_a_host_is_kept() -> None:
    text = manifest().replace("    team: a", "    team: a\n  annotations:\n    herdsman.dev/host: mac")
    result = convert("-f", "-", "--to", "kserve", text=text)
    assert yaml.safe_load(result.stdout)["metadata"]["annotations"] == {
        "herdsman.dev/host": "mac",
        "herdsman.dev/model-file": "tiny.gguf",
    }
    back = convert("-f", "-", "--to", "llmkube", text=result.stdout)
    model, service = yaml.safe_load_all(back.stdout)
    assert model["spec"]["source"] == "hf://acme/tiny@v1/tiny.gguf"
    assert service["metadata"]["annotations"] == {"herdsman.dev/host": "mac"}


def examples() -> list[Path]:
    services = {"InferenceService", "Playground", "LLMInferenceService"}
    return [path for path in sorted((ROOT / "examples").glob("*/*.yaml")) if services & kinds_of(path)]


@pytest.mark.parametrize("to", ["llmkube", "kserve", "llmaz"])
@pytest.mark.parametrize("path", examples(), ids=lambda path: f"{path.parent.name}/{path.name}")
def test_every_example_is_written_so_that_it_can_be_read_or_is_refused_for_its_source(path: Path, to: str) -> None:
    result = convert("-f", str(path), "--to", to)
    if result.exit_code:
        refusals = [line for line in result.stderr.splitlines() if line.startswith("Error:")]
        reasons = (
            "already",
            "cannot fetch",
            "needs an absolute path",
            "only",
            "presets start",
            "pulls its weights itself",
            "groups of",
        )
        assert refusals
        assert all(any(reason in line for reason in reasons) for line in refusals), result.stderr
        return
    found = Manifests("default")
    found.read_text("converted", result.stdout)
    assert len(list(found.services())) >= 1
    assert found.errors == []


def test_annotations_that_only_llmkubes_services_honour_are_lost() -> None:
    notes = "    team: a\n  annotations:\n    herdsman.dev/rollback: 'true'\n    herdsman.dev/drift: report"
    result = convert("-f", "-", "--to", "llmaz", text=manifest().replace("    team: a", notes))
    _, playground = yaml.safe_load_all(result.stdout)
    assert playground["metadata"]["annotations"] == {"herdsman.dev/drift": "report"}
    at = "InferenceService `chat`: metadata.annotations[herdsman.dev/rollback]"
    assert result.stderr.splitlines() == [f"Lost: {at}: has an effect on LLMKube's services only"]


def test_paths_of_the_weights_are_named_since_they_lie_elsewhere_there() -> None:
    service = {
        "apiVersion": "serving.kserve.io/v1alpha2",
        "kind": "LLMInferenceService",
        "metadata": {"name": "chat"},
        "spec": {
            "model": {"uri": "hf://acme/tiny"},
            "template": {"containers": [{"name": "main", "args": ["--chat-template", "/mnt/models/chat.jinja"]}]},
        },
    }
    result = convert("-f", "-", "--to", "llmaz", text=yaml.safe_dump(service))
    assert "`/mnt/models/chat.jinja` names a path that exists only in the pods of KServe" in result.stderr


def test_a_group_of_pods_stays_one_where_there_are_groups_and_else_its_leader_is_written() -> None:
    vector = json.loads((ROOT / "tests/conformance/llmaz/047-service-multi-host.json").read_text())
    text = json.dumps({"kind": "List", "items": vector["input"]})
    result = convert("-f", "-", "--to", "llmkube", text=text)
    assert result.exit_code == 0, result.stderr
    _, service = yaml.safe_load_all(result.stdout)
    assert service["spec"]["command"] == ["sh", "-c"]
    lost = [line.split(": ")[2] for line in result.stderr.splitlines()]
    assert {"spec.workloadTemplate.workerTemplate", "spec.workloadTemplate.size"} <= set(lost)
    assert "is already in the dialect llmaz" in convert("-f", "-", "--to", "llmaz", text=text).stderr
    # KServe supports groups too.
    group = convert("-f", "-", "--to", "kserve", text=text)
    assert group.exit_code == 0, group.stderr
    spec = yaml.safe_load(group.stdout)["spec"]
    assert spec["parallelism"] == {"pipeline": 2}
    for pods, rank in ((spec["template"], "--node-rank 0"), (spec["worker"], "--node-rank $LWS_WORKER_INDEX")):
        (container,) = pods["containers"]
        assert container["command"] == ["sh", "-c"]
        assert rank in container["args"][0]
    assert not [line for line in group.stderr.splitlines() if "workerTemplate: " in line or ".size: " in line]


def on_a_host(**spec: Any) -> str:
    documents = list(yaml.safe_load_all(manifest(**spec)))
    documents[1]["metadata"]["annotations"] = {"herdsman.dev/host": "mac"}
    return yaml.safe_dump_all(documents)


def test_what_a_host_does_not_allow_is_named_with_the_field_that_it_becomes() -> None:
    text = on_a_host(extraArgs=["--seed", "1", "--tools", "all"])
    result = convert("-f", "-", "--to", "kserve", text=text)
    assert result.exit_code == 0, result.stderr
    assert "Not allowed: converted: LLMInferenceService `chat`: spec.template.containers[0].args[" in result.stderr
    assert "host `mac` does not allow flag `--tools`" in result.stderr
    allowing = {
        "apiVersion": "herdsman.dev/v1alpha1",
        "kind": "Host",
        "metadata": {"name": "mac"},
        "spec": {"allow": {"flags": ["--tools"]}},
    }
    result = convert("-f", "-", "--to", "kserve", text=f"{text}---\n{yaml.safe_dump(allowing)}")
    assert "Not allowed" not in result.stderr
    result = convert("-f", "-", "--to", "kserve", "-o", "json", text=text)
    assert "--tools" in json.loads(result.stderr)["notAllowed"][0]


def test_render_refuses_what_a_host_does_not_allow() -> None:
    result = CliRunner().invoke(
        application(["convert", "render"]), ["render", "-f", "-"], input=on_a_host(extraArgs=["--tools", "all"])
    )
    assert result.exit_code == 1
    assert "spec.extraArgs[0]: host `mac` does not allow flag `--tools`" in result.stderr
