"""The catalog as data: it is complete, refused where it is wrong, and its documents are what the dialect accepts."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import yaml

from automation.catalog.documents import documents_of
from automation.catalog.entries import Catalog, CatalogError, UnknownModel, UnknownVariant
from automation.catalog.fitting import DoesNotFit, Room, choose, contexts, memory_of
from automation.catalog.loading import CatalogInvalid, load, parse
from program.desired.keys import is_dns_label
from program.desired.model import SourceKind
from program.dialects.crds.reading import read
from program.dialects.llmkube.parse.model import model_of
from program.dialects.llmkube.schema.service import ServiceSpec

GIB = 1 << 30
CATALOG = load()
IDS = [entry.id for entry in CATALOG.models]


def mac(gibs: float, name: str = "mac") -> Room:
    return Room(name, int(gibs * GIB), "metal")


def small(**changes: Any) -> dict[str, Any]:
    file = {"path": "a-Q4_K_M.gguf", "bytes": 1000}
    variant = {"quant": "Q4_K_M", "repository": "org/a", "files": [file]}
    return {"id": "a", "variants": [variant], **changes}


def catalog(*entries: dict[str, Any]) -> str:
    return yaml.safe_dump({"version": 1, "models": list(entries)})


def test_the_catalog_has_the_models_of_every_size() -> None:
    assert len(IDS) >= 25
    sizes = [entry.variants[0].bytes for entry in CATALOG.models]
    assert min(sizes) < GIB < 50 * GIB < max(sizes)
    assert {"qwen3.5-4b", "gpt-oss-120b", "granite-4-h-tiny", "nomic-embed-v1.5"} <= set(IDS)


@pytest.mark.parametrize("model_id", IDS)
def test_every_entry_deploys_as_documents_that_the_dialect_accepts(model_id: str) -> None:
    entry = CATALOG.entry(model_id)
    model, service = documents_of(entry, choose(entry, [mac(500)]), namespace="ns")
    parsed = model_of(model)
    assert parsed.source.kind in (SourceKind.HTTP, SourceKind.REPOSITORY)
    assert len(parsed.files) == (0 if len(choose(entry, []).variant.files) == 1 else 3)
    assert is_dns_label(model["metadata"]["name"])
    spec = read(ServiceSpec, service["spec"], field="spec")
    assert spec.model_ref == model["metadata"]["name"]
    assert spec.mode == ("embedding" if "embedding" in entry.capabilities else None)


@pytest.mark.parametrize("model_id", IDS)
def test_the_header_of_an_entry_has_all_numbers_of_an_estimate(model_id: str) -> None:
    header = CATALOG.entry(model_id).header
    if header is not None:
        assert header.layer_count and header.embedding_size and header.head_count
        assert header.feed_forward_length and header.vocabulary_size and header.architecture
        assert len(header.head_counts_kv) in (0, header.layer_count)


def test_llama_3_1_takes_128_kib_a_token() -> None:
    entry = CATALOG.entry("llama-3.1-8b")
    assert memory_of(entry, entry.variants[0], context=8192).cache_bytes == GIB
    assert memory_of(entry, entry.variants[0], context=131072).cache_bytes == 16 * GIB


def test_latent_attention_keeps_one_vector_a_token() -> None:
    entry = CATALOG.entry("glm-4.7-flash")
    assert memory_of(entry, entry.variants[0], context=8192).cache_bytes == 47 * 576 * 2 * 8192


def test_the_largest_variant_that_fits_is_chosen() -> None:
    entry = CATALOG.entry("qwen3.6-35b-a3b")
    chosen = [choose(entry, [mac(gibs)]).variant.quant for gibs in (24, 27, 30, 40)]
    assert chosen == ["UD-Q4_K_M", "UD-Q5_K_M", "UD-Q6_K", "Q8_0"]
    assert choose(entry, [mac(40)], quant="ud-q4_k_m").variant.quant == "UD-Q4_K_M"


def test_a_place_with_an_accelerator_goes_first_and_the_larger_of_two() -> None:
    entry = CATALOG.entry("qwen3.5-4b")
    rooms = [Room("server", 200 * GIB), mac(10, "small"), mac(20, "big")]
    assert choose(entry, rooms).room == rooms[2]
    assert choose(CATALOG.entry("qwen3.6-27b"), rooms).room == rooms[2]
    assert choose(CATALOG.entry("llama-3.3-70b"), rooms).room == rooms[0]


def test_the_context_is_halved_and_then_the_cache_is_quantised() -> None:
    entry = CATALOG.entry("llama-3.1-8b")
    found = [choose(entry, [mac(gibs)]) for gibs in (10, 7.5, 6.3, 5.6)]
    assert [(each.context, each.cache_type) for each in found] == [(32768, ""), (16384, ""), (8192, ""), (8192, "q8_0")]
    assert all(each.room and each.memory.total_bytes <= each.room.usable_bytes for each in found)
    service = documents_of(entry, found[3])[1]["spec"]
    assert (service["contextSize"], service["cacheTypeK"], service["cacheTypeV"]) == (8192, "q8_0", "q8_0")


def test_a_model_without_a_place_is_refused_with_the_sum() -> None:
    with pytest.raises(DoesNotFit) as refused:
        choose(CATALOG.entry("llama-3.3-70b"), [mac(10), mac(20, "studio")])
    message = str(refused.value)
    assert "weights 39.6 GiB + KV cache" in message
    assert "studio (metal) has 19.0 GiB (95% of 20.0 GiB)" in message
    assert "catalog list" in refused.value.hint


def test_the_context_of_the_user_is_kept_and_not_longer_than_trained() -> None:
    entry = CATALOG.entry("qwen3-8b")
    assert choose(entry, [mac(40)], context=40960).context == 40960
    with pytest.raises(DoesNotFit):
        choose(entry, [mac(8)], context=40960)
    with pytest.raises(CatalogError, match="trained with 40,960"):
        choose(entry, [mac(40)], context=100000)
    assert contexts(CATALOG.entry("nomic-embed-v1.5"), None) == [2048]
    assert contexts(CATALOG.entry("glm-4.7-flash"), None) == [32768, 16384, 8192]


def test_a_variant_below_four_bits_is_chosen_only_by_name() -> None:
    def variant(quant: str, size: int) -> dict[str, Any]:
        return {"quant": quant, "repository": "o/a", "files": [{"path": f"{quant}.gguf", "bytes": size * GIB}]}

    entry = parse(catalog(small(variants=[variant("UD-Q2_K_XL", 3), variant("Q4_K_M", 6)])), name="x").models[0]
    with pytest.raises(DoesNotFit):
        choose(entry, [mac(5)])
    assert choose(entry, [mac(5)], quant="UD-Q2_K_XL").variant.quant == "UD-Q2_K_XL"
    with pytest.raises(UnknownVariant, match="no variant `Q8_0`") as unknown:
        choose(entry, [mac(5)], quant="Q8_0")
    assert "Q4_K_M, UD-Q2_K_XL" in unknown.value.hint


def test_documents_are_placed_where_the_choice_fits() -> None:
    entry = CATALOG.entry("qwen3.5-4b")

    def made(room: Room | None, **options: Any) -> tuple[Any, Any]:
        model, service = documents_of(entry, choose(entry, [room] if room else []), "chat", **options)
        return model, service

    model, service = made(mac(20))
    assert (model["spec"]["hardware"], "annotations" in service["metadata"]) == ({"accelerator": "metal"}, False)
    assert made(mac(20), pinned=True)[1]["metadata"]["annotations"] == {"herdsman.dev/host": "mac"}
    model, service = made(Room("box", 20 * GIB))
    assert ("hardware" in model["spec"], service["metadata"]["annotations"]) == (False, {"herdsman.dev/host": "box"})
    model, service = made(Room("n1", 20 * GIB, "cuda", "node"))
    assert model["spec"]["hardware"] == {"accelerator": "cuda", "gpu": {"enabled": True, "count": 1}}
    _, service = made(Room("n1", 20 * GIB, "", "node"))
    assert service["spec"]["resources"]["memory"].endswith("Mi")
    model, service = made(None, replicas=2)
    assert (model["metadata"], service["spec"]["replicas"]) == ({"name": "chat"}, 2)
    assert model["spec"]["source"].startswith("hf://unsloth/Qwen3.5-4B-GGUF@")
    assert model["spec"]["sha256"] == entry.variants[0].files[0].sha256


def test_pictures_need_the_projector_which_counts_and_is_a_file_of_the_model() -> None:
    entry = CATALOG.entry("gemma-4-12b")
    blind, seeing = choose(entry, [mac(20)]), choose(entry, [mac(20)], vision=True)
    projector = entry.variants[0].projector
    assert projector is not None
    assert seeing.memory.total_bytes - blind.memory.total_bytes == pytest.approx(projector.bytes * 1.2, abs=1)
    model, _ = documents_of(entry, seeing)
    parsed = model_of(model)
    assert (parsed.source.kind, parsed.files, parsed.mmproj) == (
        SourceKind.REPOSITORY,
        ("gemma-4-12b-it-qat-q4_0.gguf",),
        "mmproj-gemma-4-12b-it-qat-q4_0.gguf",
    )
    assert parsed.sha256 == entry.variants[0].files[0].sha256
    with pytest.raises(CatalogError, match="no projector for model `qwen3-8b`"):
        choose(CATALOG.entry("qwen3-8b"), [mac(20)], vision=True)


def test_a_name_that_kubernetes_refuses_is_refused_first() -> None:
    entry = CATALOG.entry("qwen3.5-4b")
    assert entry.default_name == "qwen3-5-4b"
    with pytest.raises(CatalogError, match="Chat_1"):
        documents_of(entry, choose(entry, []), "Chat_1")


@pytest.mark.parametrize(
    ("asked", "near"),
    [("qwen3.5-4", "qwen3.5-4b"), ("lama-3.1-8b", "llama-3.1-8b"), ("qwen3.6", "qwen3.6-27b"), ("GPT-OSS", "gpt-oss")],
)
def test_unknown_ids_name_near_ones(asked: str, near: str) -> None:
    with pytest.raises(UnknownModel) as unknown:
        CATALOG.entry(asked)
    assert near in unknown.value.hint


def test_an_id_is_found_in_any_case_and_an_unlike_one_names_the_list() -> None:
    assert CATALOG.entry("Qwen3.5-4B").id == "qwen3.5-4b"
    with pytest.raises(UnknownModel) as unknown:
        CATALOG.entry("zzz")
    assert unknown.value.hint == "`herdsman catalog list` shows all models"


def test_a_catalog_of_a_file_replaces_the_own_one(tmp_path: Path) -> None:
    path = tmp_path / "mine.yaml"
    path.write_text(catalog(small(licence="MIT")))
    found = load(str(path))
    assert isinstance(found, Catalog)
    assert [(entry.id, entry.licence) for entry in found.models] == [("a", "MIT")]


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("version: 2\nmodels: []", "version"),
        ("{", "not valid YAML"),
        ("- 1", "the document"),
        (catalog(small(id="Upper")), "models[0].id"),
        (catalog(small(), small()), "two models have the id `a`"),
        (catalog(small(licens="MIT")), "models[0].licens"),
        (
            catalog(
                small(variants=[{"quant": "Q4", "repository": "o/a", "files": [{"path": "../x.gguf", "bytes": 1}]}])
            ),
            "models[0].variants[0].files[0].path",
        ),
        (catalog(small(variants=[])), "models[0].variants"),
    ],
)
def test_a_wrong_catalog_is_refused_with_the_place_of_the_error(text: str, said: str) -> None:
    with pytest.raises(CatalogInvalid, match="mine") as refused:
        parse(text, name="mine.yaml")
    assert said in str(refused.value)


def test_a_catalog_that_cannot_be_read_is_refused(tmp_path: Path) -> None:
    with pytest.raises(CatalogInvalid, match="No such file"):
        load(str(tmp_path / "none.yaml"))
    with pytest.raises(CatalogInvalid, match="not fetched over http"):
        load("http://models.example/catalog.yaml")
    (tmp_path / "binary").write_bytes(b"\xff\xfe\x00")
    with pytest.raises(CatalogInvalid, match="not UTF-8"):
        load(str(tmp_path / "binary"))
