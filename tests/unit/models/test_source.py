"""Parsing `Model.spec.source`: the classes of sources, cache keys, file names."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from program.desired.errors import SpecInvalid
from program.desired.model import SourceKind
from program.dialects.llmkube.source import cache_key, file_name, needs_cache, parse_source


@pytest.mark.parametrize(
    ("address", "path"),
    [
        ("https://example.com/models/x.gguf", "x.gguf"),
        ("HTTP://example.com:8080/x.gguf?token=a", "x.gguf"),
        ("https://example.com/", ""),
        ("https://huggingface.co/org/repo/resolve/main/dir/x.gguf", "x.gguf"),
        ("https://huggingface.co/org/repo/blob/main/x%20y.gguf", "x y.gguf"),
        ("http://127.0.0.1:28080/gguf/plain-7b.Q4_K_M.gguf", "plain-7b.Q4_K_M.gguf"),
        ("http://[::1]:80/x.gguf", "x.gguf"),
    ],
)
def test_an_http_url_is_one_file(address: str, path: str) -> None:
    source = parse_source(address)
    assert (source.kind, source.address, source.path) == (SourceKind.HTTP, address, path)
    assert needs_cache(source)


@pytest.mark.parametrize(
    ("address", "path"),
    [
        ("/srv/models/x.gguf", "/srv/models/x.gguf"),
        ("file:///srv/models/x.gguf", "/srv/models/x.gguf"),
        ("FILE://localhost/srv/x.gguf", "/srv/x.gguf"),
    ],
)
def test_a_path_is_a_file_on_the_node(address: str, path: str) -> None:
    source = parse_source(address)
    assert (source.kind, source.path) == (SourceKind.FILE, path)
    assert needs_cache(source)


def test_a_directory_is_a_model_of_other_formats_only() -> None:
    assert parse_source("/srv/mlx/model/", format="mlx").path == "/srv/mlx/model/"
    with pytest.raises(SpecInvalid, match="directory"):
        parse_source("/srv/mlx/model/")


def test_a_claim_names_the_claim_and_the_path_on_it() -> None:
    source = parse_source("pvc://weights/chat/plain.gguf")
    assert (source.kind, source.claim, source.path) == (SourceKind.CLAIM, "weights", "chat/plain.gguf")
    assert not needs_cache(source)


@pytest.mark.parametrize(
    ("address", "repository", "revision"),
    [
        ("hf://acme/tiny-1b@v2", "acme/tiny-1b", "v2"),
        ("hf://acme/tiny-1b", "acme/tiny-1b", ""),
        ("acme/tiny-1b", "acme/tiny-1b", ""),
        ("acme/tiny-1b@refs/pr/3", "acme/tiny-1b", "refs/pr/3"),
        ("https://huggingface.co/acme/tiny-1b", "acme/tiny-1b", ""),
        ("https://huggingface.co/acme/tiny-1b/", "acme/tiny-1b", ""),
        ("https://www.huggingface.co/acme/tiny-1b/tree/v2", "acme/tiny-1b", "v2"),
        ("https://huggingface.co/acme/tiny-1b/tree/refs%2Fpr%2F3", "acme/tiny-1b", "refs/pr/3"),
        ("https://huggingface.co/acme/tiny-1b/resolve/main/", "acme/tiny-1b", "main"),
    ],
)
def test_a_repository_is_fetched_by_the_engine(address: str, repository: str, revision: str) -> None:
    source = parse_source(address, format="safetensors")
    assert (source.kind, source.repository, source.revision) == (SourceKind.REPOSITORY, repository, revision)
    assert source.address == address
    assert not needs_cache(source)


@pytest.mark.parametrize(
    ("address", "why"),
    [
        ("", "is empty"),
        ("ftp://host/x.gguf", "scheme `ftp`"),
        ("s3://bucket/x.gguf", "scheme `s3`"),
        ("https:///x.gguf", "no host"),
        ("https://host:99999/x.gguf", "not a URL"),
        ("https://host/a b.gguf", "white space"),
        ("https://host/a\nb.gguf", "white space"),
        ("https://huggingface.co/datasets/org/name", "datasets"),
        ("https://huggingface.co/spaces/org/name", "spaces"),
        ("https://huggingface.co/org/repo/tree/main/sub/dir", "neither a file nor"),
        ("https://huggingface.co/gpt2", "org/repo"),
        ("plain", "neither a URL"),
        ("../x.gguf", "neither a URL"),
        ("org/repo/file.gguf", "https://huggingface.co/org/repo/resolve/main/file.gguf"),
        ("hf://org/repo@", "not a revision"),
        ("hf://org/repo@a/../b", "not a revision"),
        ("pvc://Weights/x.gguf", "not the name"),
        ("pvc://weights", "names no file"),
        ("pvc://weights/", "names no file"),
        ("pvc://weights/../x.gguf", "climb"),
        ("/srv/../etc/passwd", "climb"),
        ("file://otherhost/x.gguf", "absolute path"),
        ("file://", "absolute path"),
    ],
)
def test_what_cannot_be_served_is_refused_with_the_field_and_the_reason(address: str, why: str) -> None:
    with pytest.raises(SpecInvalid) as caught:
        parse_source(address)
    assert caught.value.field == "spec.source"
    assert why in caught.value.why


@given(st.text(max_size=60))
def test_any_text_is_parsed_or_refused(address: str) -> None:
    try:
        source = parse_source(address)
    except SpecInvalid as error:
        field = error.field
    else:
        assert source.address == address
        return
    assert field == "spec.source"


def test_a_page_on_hugging_face_is_fetched_as_the_file_it_shows() -> None:
    page = parse_source("https://huggingface.co/org/repo/blob/main/x.gguf")
    assert page.download_address == "https://huggingface.co/org/repo/resolve/main/x.gguf"
    assert page.address == "https://huggingface.co/org/repo/blob/main/x.gguf"
    plain = parse_source("https://example.com/a/b/blob/main/x.gguf")
    assert plain.download_address == plain.address


def test_cache_keys_are_those_of_the_peer() -> None:
    assert cache_key("https://example.com/model.gguf") == "8cc5f1f83d631cc0"
    assert cache_key("http://127.0.0.1:28080/gguf/plain-7b.Q4_K_M.gguf") == "e53eebd3f37b7b64"


@pytest.mark.parametrize(
    ("gguf_name", "model_name", "expected"),
    [
        ("Llama 3.1/Instruct", "m", "Llama-3.1-Instruct.gguf"),
        ("Org/MoE 30B: v2", "m", "Org-MoE-30B-v2.gguf"),
        ("", "my-model", "my-model.gguf"),
        ("///", "my.model", "my.model.gguf"),
        ("...", "--", "model.gguf"),
        ("../../etc/passwd", "m", "etc-passwd.gguf"),
        ("Modèle", "m", "Mod-le.gguf"),
    ],
)
def test_the_file_is_named_after_the_header_else_the_model(gguf_name: str, model_name: str, expected: str) -> None:
    assert file_name(gguf_name, model_name) == expected


@given(st.text(), st.text())
def test_a_file_name_is_always_one_safe_path_component(gguf_name: str, model_name: str) -> None:
    name = file_name(gguf_name, model_name)
    assert name.endswith(".gguf")
    assert "/" not in name
    assert not name.startswith(".")
    assert len(name) <= 205
