"""Plans of processes on hosts: what the newer fields change in them, and what no host can run."""

from __future__ import annotations

from typing import Any

import pytest

from components.host_plan import process_plan
from components.render import RenderOptions, render
from program.desired.engines import LlamaCpp, Sglang, SpeculativeDecoding
from program.desired.errors import SpecInvalid
from program.desired.model import DesiredModel, ModelSource, SourceKind
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


@pytest.mark.parametrize(
    "model",
    [claim_model(), http_model(source=S3), repository_model(files=("a.gguf", "b.gguf"))],
    ids=["claim", "s3", "set"],
)
def test_weights_that_a_host_cannot_have_are_refused(model: DesiredModel) -> None:
    with pytest.raises(SpecInvalid) as caught:
        plan(model=model)
    assert caught.value.field == "spec.modelRef"


@pytest.mark.parametrize("fields", [{"suspended": True}, {"replicas": 0}])
def test_a_stopped_service_has_no_process(fields: dict[str, Any]) -> None:
    placed = service(host_placement=HostPlacement(host="box"))
    assert [part.part for part in render(placed, RenderOptions()).objects] == ["process"]
    assert render(placed.model_copy(update=fields), RenderOptions()).objects == ()


def test_other_engines_are_refused() -> None:
    with pytest.raises(SpecInvalid, match="sglang"):
        plan(engine=Sglang())
