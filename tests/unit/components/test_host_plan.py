"""Plans of processes on hosts: what the newer fields change in them, and what no host can run."""

from __future__ import annotations

from typing import Any

import pytest

from components.host_files import host_files
from components.host_plan import process_plan
from components.render import RenderOptions, render
from program.desired.engines import LlamaCpp, Sglang, SpeculativeDecoding
from program.desired.errors import SpecInvalid
from program.desired.model import ModelFormat, ModelSource, SourceKind
from program.desired.service import HostPlacement
from tests.support.builders import claim_model, http_model, repository_model, service


def plan(**fields: Any) -> Any:
    return process_plan(service(**{"host_placement": HostPlacement(host="box"), **fields}), "box")


@pytest.mark.parametrize(
    ("fields", "path"),
    [
        ({}, "/v1/chat/completions"),
        ({"mode": "embedding"}, "/v1/embeddings"),
        ({"mode": "rerank"}, "/v1/rerank"),
        ({"completion_check": False}, None),
        ({"engine": LlamaCpp(extra_args=("--embeddings",))}, None),
        ({"engine": LlamaCpp(extra_args=("--embeddings",)), "mode": "embedding"}, "/v1/embeddings"),
    ],
)
def test_proof_is_asked_for_where_the_mode_serves(fields: Any, path: str | None) -> None:
    assert plan(**fields).completion_path == path


def test_a_mode_reaches_the_process() -> None:
    argv = plan(mode="rerank").argv
    assert argv[-7:] == ("--reranking", "--embedding", "--pooling", "rank", "--cache-ram", "0", "--metrics")


def test_drafting_without_a_second_file_reaches_the_process() -> None:
    argv = plan(engine=LlamaCpp(speculative=SpeculativeDecoding(type="ngram-mod"))).argv
    assert argv[-3:] == ("--spec-type", "ngram-mod", "--metrics")


def test_one_file_of_a_repository_is_fetched_by_its_url() -> None:
    model = repository_model("v2", files=("q4/m.gguf",), file_name="q4/m.gguf", cache_key="k")
    made = plan(model=model)
    assert made.file.source == "https://huggingface.co/org/repo/resolve/v2/q4/m.gguf"
    assert (made.file.file_name, made.file.cache_key) == ("m.gguf", "k")
    assert made.argv[:3] == ("llama-server", "--model", "{model}")


def test_a_repository_as_a_whole_is_the_engines_business() -> None:
    made = plan(model=repository_model())
    assert made.file is None
    assert made.argv[1:3] == ("--hf-repo", "org/repo")


S3 = ModelSource(kind=SourceKind.S3, address="s3://b/m.gguf", bucket="b", path="m.gguf")
DRAFTING = LlamaCpp(speculative=SpeculativeDecoding(type="draft-simple"))


def sources(made: Any) -> dict[str, tuple[str, str]]:
    """Name source and place of each file of a plan."""
    return {name: (each.source, each.file_name) for name, each in {"model": made.file, **(made.files or {})}.items()}


def test_a_set_keeps_its_folders_and_names_its_projector() -> None:
    model = repository_model(files=("q/a-1.gguf", "q/a-2.gguf"), mmproj="p.gguf", sha256="ab", cache_key="k")
    made = plan(model=model)
    base = "https://huggingface.co/org/repo/resolve/main/"
    assert sources(made) == {
        "model": (f"{base}q/a-1.gguf", "q/a-1.gguf"),
        "file-1": (f"{base}q/a-2.gguf", "q/a-2.gguf"),
        "mmproj": (f"{base}p.gguf", "p.gguf"),
    }
    assert (made.file.sha256, made.files["mmproj"].sha256, made.file.directory) == ("ab", None, None)
    assert "{mmproj}" in made.argv


def test_s3_is_named_by_bucket_and_key() -> None:
    assert sources(plan(model=http_model(source=S3))) == {"model": ("s3://b/m.gguf", "Base.gguf")}
    below = ModelSource(kind=SourceKind.S3, address="s3://b/p", bucket="b", path="p")
    made = plan(model=http_model(source=below, files=("a.gguf", "b.gguf"), file_name="a.gguf"))
    assert sources(made) == {"model": ("s3://b/p/a.gguf", "a.gguf"), "file-1": ("s3://b/p/b.gguf", "b.gguf")}


def test_a_draft_is_a_file_of_its_own_or_one_of_the_set() -> None:
    small = http_model(name="small", cache_key="d", file_name="small.gguf")
    made = plan(engine=DRAFTING, draft=small)
    assert sources(made)["draft"] == ("https://example.com/model.gguf", "small.gguf")
    assert made.files["draft"].cache_key == "d"
    assert made.argv[-3:] == ("-md", "{draft}", "--metrics")
    own = LlamaCpp(speculative=SpeculativeDecoding(type="draft-simple", draft_path="d.gguf"))
    made = plan(engine=own, model=repository_model(files=("m.gguf", "d.gguf"), cache_key="k"))
    assert set(made.files) == {"draft"}
    assert made.files["draft"].file_name == "d.gguf"


def test_formats_of_directories_are_a_directory() -> None:
    mlx = repository_model("v1", format=ModelFormat.MLX)
    whole = host_files(service(model=mlx))["file"]
    assert whole is not None
    assert (whole.source, whole.directory, whole.file_name) == ("hf://org/repo@v1", True, "repo")
    listed = host_files(service(model=mlx.model_copy(update={"files": ("config.json", "w/model.safetensors")})))
    assert listed["file"] is not None
    assert (listed["file"].file_name, listed["file"].directory) == ("config.json", True)
    assert listed["files"] is not None
    assert listed["files"]["file-1"].file_name == "w/model.safetensors"


@pytest.mark.parametrize("fields", [{"model": claim_model()}, {"engine": DRAFTING, "draft": claim_model()}])
def test_weights_on_a_claim_are_refused(fields: Any) -> None:
    with pytest.raises(SpecInvalid, match="PersistentVolumeClaim"):
        plan(**fields)


@pytest.mark.parametrize("fields", [{"suspended": True}, {"replicas": 0}])
def test_a_stopped_service_has_no_process(fields: dict[str, Any]) -> None:
    placed = service(host_placement=HostPlacement(host="box"))
    assert [part.part for part in render(placed, RenderOptions()).objects] == ["process"]
    assert render(placed.model_copy(update=fields), RenderOptions()).objects == ()


def test_other_engines_are_refused() -> None:
    with pytest.raises(SpecInvalid, match="sglang"):
        plan(engine=Sglang())
