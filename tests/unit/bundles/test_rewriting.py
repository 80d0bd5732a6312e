"""The manifests of a loaded bundle name the loaded files and images."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import yaml

from automation.bundles import images, rewriting
from automation.bundles.contents import BundleError
from automation.bundles.rewriting import Address, Store
from automation.bundles.wanted import from_catalog, wanted
from automation.catalog.loading import load
from program.dialects.llmkube.parse.model import model_of
from program.dialects.llmkube.parse.source import cache_key
from program.manifests import Manifests

URL = "https://example.org/tiny.gguf"
PATH = f"models/{cache_key(URL)}/tiny.gguf"
ENGINE = "ghcr.io/ggml-org/llama.cpp:server"


def model(name: str = "tiny", **spec: Any) -> dict[str, Any]:
    return {
        "apiVersion": "inference.llmkube.dev/v1alpha1",
        "kind": "Model",
        "metadata": {"name": name, "namespace": "default"},
        "spec": {"source": URL, "format": "gguf", **spec},
    }


def service(**spec: Any) -> dict[str, Any]:
    return {
        "apiVersion": "inference.llmkube.dev/v1alpha1",
        "kind": "InferenceService",
        "metadata": {"name": "tiny", "namespace": "default"},
        "spec": {"modelRef": "tiny", **spec},
    }


def text(*documents: dict[str, Any]) -> str:
    return yaml.safe_dump_all(documents)


def manifests(*documents: dict[str, Any]) -> Manifests:
    made = Manifests("default")
    made.read_text("a.yaml", text(*documents))
    return made


def source(found: list[dict[str, Any]]) -> str:
    return str(found[0]["spec"]["source"])


def test_in_a_store_sources_stay_because_agents_find_files_by_them() -> None:
    given = [model(sourceSecretRef={"name": "token"}), service()]
    assert rewriting.documents(text(*given), Store(Path("/srv/store")), {}) == given


def test_a_local_path_in_a_store_is_named_because_agents_do_not_look_for_it() -> None:
    path = "/home/ana/tiny.gguf"
    found = rewriting.documents(text(model(source=path)), Store(Path("/srv/store")), {})
    assert source(found) == f"file:///srv/store/{cache_key(path)}/tiny.gguf"


@pytest.mark.parametrize("base", ["file:///srv/models", "pvc://models", "https://models.example/x"])
def test_elsewhere_sources_lead_to_the_files_and_need_no_secret(base: str) -> None:
    given = model(sourceSecretRef={"name": "token"}, refreshPolicy="OnChange", sha256="0" * 64)
    found = rewriting.documents(text(given, service()), Address(base), {})
    assert found[0]["spec"] == {"source": f"{base}/{PATH}", "format": "gguf", "sha256": "0" * 64}
    assert found[1] == service()
    assert model_of(found[0]).source.address == f"{base}/{PATH}"


def test_a_set_of_files_goes_where_the_engine_finds_all_parts() -> None:
    parts = ["m-00001-of-00002.gguf", "m-00002-of-00002.gguf"]
    given = model(source="hf://org/repo", files=parts)
    key = cache_key("hf://org/repo")
    found = rewriting.documents(text(given), Address("pvc://models"), {})
    assert found[0]["spec"] == {"source": f"pvc://models/models/{key}/{parts[0]}", "format": "gguf"}
    with pytest.raises(BundleError, match="has several files, and a server gives one"):
        rewriting.documents(text(given), Address("https://models.example"), {})
    with pytest.raises(BundleError, match="has a projector"):
        rewriting.documents(text(model(source="hf://org/repo", files=parts, mmproj="p.gguf")), Address("pvc://m"), {})


def test_pushed_images_replace_those_of_pods_and_of_the_operator() -> None:
    pushed = {ENGINE: "registry.local/ai/ggml-org/llama.cpp:server"}
    found = rewriting.documents(text(model(), service()), Address("pvc://models"), pushed)
    assert found[1]["spec"]["image"] == pushed[ENGINE]
    deployment = {"spec": {"template": {"spec": {"containers": [{"name": "a", "image": ENGINE}]}}}}
    (changed,) = rewriting.with_images(text(deployment), pushed)
    assert changed["spec"]["template"]["spec"]["containers"][0]["image"] == pushed[ENGINE]


def test_the_contents_are_the_files_of_all_models_and_the_images_of_pods() -> None:
    found = wanted(manifests(model(), service(), model("other", source="hf://org/repo/o.gguf")))
    assert {file.path: file.plan.source for file in found.files} == {
        PATH: URL,
        f"models/{cache_key('hf://org/repo/o.gguf')}/other.gguf": "https://huggingface.co/org/repo/resolve/main/o.gguf",
    }
    assert ENGINE in found.images


def test_secrets_are_left_out_and_said() -> None:
    secret = {"apiVersion": "v1", "kind": "Secret", "metadata": {"name": "x"}, "stringData": {"HF_TOKEN": "hf_secret"}}
    found = wanted(manifests(model(), secret))
    assert "hf_secret" not in str(found)
    assert any("Secret `x`" in note for note in found.notes)


def test_a_model_of_the_catalog_has_its_licence_and_the_digests_of_all_files() -> None:
    entry = load().entry("gpt-oss-120b")
    found = wanted(Manifests("default"), from_catalog(load(), ["gpt-oss-120b"]))
    assert len(found.files) == len(entry.variants[0].files) > 1
    known = {file.path: file.sha256 for file in entry.variants[0].files}
    assert {file.plan.file_name: file.plan.sha256 for file in found.files} == known
    assert {file.licence for file in found.files} == {entry.licence}


@pytest.mark.parametrize(
    ("spec", "said"),
    [
        ({"source": "pvc://claim/m.gguf"}, "PersistentVolumeClaim"),
        ({"source": "hf://org/repo"}, "names a whole repository"),
        ({"source": "ftp://x/y"}, "Model `tiny`: spec.source"),
    ],
)
def test_a_model_that_cannot_be_packed_is_named(spec: dict[str, Any], said: str) -> None:
    with pytest.raises(BundleError, match=said):
        wanted(manifests(model(**spec), service()))


@pytest.mark.parametrize(
    ("image", "pushed"),
    [
        ("ghcr.io/ggml-org/llama.cpp:server", "r.local:5000/ai/ggml-org/llama.cpp:server"),
        ("vllm/vllm-openai", "r.local:5000/ai/vllm/vllm-openai:latest"),
        ("herdsman:0.1.0", "r.local:5000/ai/herdsman:0.1.0"),
        ("localhost/x:1", "r.local:5000/ai/x:1"),
    ],
)
def test_an_image_keeps_its_path_in_another_registry(image: str, pushed: str) -> None:
    assert images.pushed_name(image, "r.local:5000/ai/") == pushed


def test_an_image_is_named_with_or_without_a_place() -> None:
    assert images.parsed("vllm/vllm-openai") == ("vllm/vllm-openai:latest", "docker://vllm/vllm-openai:latest")
    assert images.parsed("herdsman:1=docker-archive:/x.tar") == ("herdsman:1", "docker-archive:/x.tar")
    for wrong in ("", "docker-archive:/x.tar", "a b:1", "a@sha256:1"):
        with pytest.raises(BundleError, match="is not the name of an image"):
            images.parsed(wrong)


def test_without_skopeo_the_message_says_how_to_get_it(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(BundleError) as failed:
        images.check_present()
    assert "brew install skopeo" in failed.value.hint
