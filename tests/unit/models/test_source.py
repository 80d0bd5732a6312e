"""Parsing `Model.spec.source`: the classes of sources, cache keys, file names."""

from __future__ import annotations

import posixpath

import pytest
from hypothesis import given
from hypothesis import strategies as st

from program.desired.errors import SpecInvalid
from program.desired.hub import Hub
from program.desired.model import SourceKind
from program.desired.web_address import WebAddress
from program.dialects.llmkube.parse.source import (
    cache_key,
    file_name,
    file_set,
    file_url,
    hub_location,
    needs_cache,
    object_key,
    parse_source,
    repository_url,
)


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


@pytest.mark.parametrize(
    ("path", "model_format", "directory"),
    [
        ("/srv/models/llama", "safetensors", True),
        ("/srv/models/llama-3.1", "safetensors", True),
        ("/srv/models/llama/", "pytorch", True),
        ("/srv/mlx/model", "mlx", True),
        ("/srv/engine/", "custom", True),
        ("/srv/engine", "custom", False),
        ("/srv/models/llama.safetensors", "safetensors", False),
        ("/srv/models/weights.BIN", "pytorch", False),
        ("/srv/models/m", "gguf", False),
    ],
)
def test_the_format_tells_a_directory_of_the_node_from_a_file(path: str, model_format: str, directory: bool) -> None:
    source = parse_source(f"file://{path}", format=model_format)
    assert source.directory is directory
    assert needs_cache(source) is not directory, "a directory is mounted in place"


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
        ("s3://bucket", "has no key in bucket"),
        ("s3://bucket/models/", "names a prefix"),
        ("s3://B/x.gguf", "name of a bucket"),
        ("s3://bucket/../x.gguf", "`..` parts"),
        ("hf://org/repo/../x.gguf", "not the path of a file"),
        ("hf://org/repo@main/a/../x.gguf", "not the path of a file"),
        ("https:///x.gguf", "no host"),
        ("https://host:99999/x.gguf", "not a URL"),
        ("https://host:0/x.gguf", "port"),
        ("https://host:/x.gguf", "port"),
        ("https://evil.example\\@huggingface.co/o/r/resolve/main/m.gguf", "backslash"),
        ("https://user:secret@example.com/x.gguf", "spec.sourceSecretRef"),
        ("https://allowed.example@evil.example/x.gguf", "user or a password"),
        ("https://allowed.example/acme/../x.gguf", "`..`"),
        ("hf://org\\repo/x", "backslash"),
        ("s3://bucket/a\\b.gguf", "backslash"),
        ("https://host/a b.gguf", "white space"),
        ("https://host/a\nb.gguf", "white space"),
        ("https://huggingface.co/datasets/org/name", "datasets"),
        ("https://huggingface.co/spaces/org/name", "spaces"),
        ("https://huggingface.co/org/repo/tree/main/sub/dir", "neither a file nor"),
        ("https://huggingface.co/gpt2", "org/repo"),
        ("plain", "neither a URL"),
        ("../x.gguf", "neither a URL"),
        ("org/repo/file.gguf", "hf://org/repo/file.gguf"),
        ("hf://org/repo@", "not a revision"),
        ("hf://org/repo@a/../b", "not a revision"),
        ("pvc://Weights/x.gguf", "not the name"),
        ("pvc://weights", "has no file path"),
        ("pvc://weights/", "has no file path"),
        ("pvc://weights/../x.gguf", "must not"),
        ("/srv/../etc/passwd", "must not"),
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


@pytest.mark.parametrize(
    ("address", "path"),
    [
        ("hf://acme/tiny-GGUF/tiny.Q4_K_M.gguf", "main/tiny.Q4_K_M.gguf"),
        ("hf://acme/tiny-GGUF@v2/tiny.gguf", "v2/tiny.gguf"),
        ("hf://acme/tiny-GGUF@v2/q4/tiny 1.gguf".replace(" ", "+"), "v2/q4/tiny%2B1.gguf"),
        ("hf://acme/tiny-GGUF@refs/pr/3/q4/tiny.gguf", "refs%2Fpr%2F3/q4/tiny.gguf"),
    ],
)
def test_one_file_of_a_repository_is_fetched_by_the_pod(address: str, path: str) -> None:
    source = parse_source(address)
    assert (source.kind, source.address) == (SourceKind.HTTP, address)
    assert source.download_address == f"https://huggingface.co/acme/tiny-GGUF/resolve/{path}"
    assert needs_cache(source)


def test_an_object_or_with_files_a_prefix_lies_in_a_bucket() -> None:
    source = parse_source("s3://weights/chat/x.gguf")
    assert (source.kind, source.bucket, source.path) == (SourceKind.S3, "weights", "chat/x.gguf")
    assert needs_cache(source)
    assert object_key(source) == "chat/x.gguf"
    prefix = parse_source("s3://weights/chat/", files=True)
    assert object_key(prefix, "q4/x.gguf") == "chat/q4/x.gguf"
    assert object_key(parse_source("s3://weights", files=True), "x.gguf") == "x.gguf"


def test_a_repository_is_cached_only_where_the_model_lists_files() -> None:
    source = parse_source("hf://acme/tiny@v2")
    assert not needs_cache(source)
    assert needs_cache(source, ["a.gguf"])
    assert repository_url(source) == "https://huggingface.co/acme/tiny/resolve/v2/"
    assert file_url(source, "q4/a b.gguf", "http://hub.in.house/") == (
        "http://hub.in.house/acme/tiny/resolve/v2/q4/a%20b.gguf"
    )


def test_another_hub_stands_in_for_hugging_face_and_for_nothing_else() -> None:
    hub = "http://hub.in.house:8080/mirror"
    page = "https://huggingface.co/acme/tiny/resolve/main/x.gguf?download=true"
    assert hub_location(page, f"{hub}/") == f"{hub}/acme/tiny/resolve/main/x.gguf?download=true"
    assert hub_location("https://hf.co/acme/tiny/resolve/main/x.gguf", hub).startswith(hub)
    for other in ("https://example.com/x.gguf", "https://huggingface.co.evil.org/x", "https://[bad/x", "s3://b/k"):
        assert hub_location(other, hub) == other
    assert hub_location(page, "https://huggingface.co") == page


@pytest.mark.parametrize(
    ("url", "hub", "expected"),
    [
        ("https://huggingface.co/a/b/resolve/main/x", "https://huggingface.co", True),
        ("https://hf.co/a/b/resolve/main/x", "https://huggingface.co", True),
        ("http://huggingface.co/a/b/resolve/main/x", "https://huggingface.co", False),
        ("http://huggingface.co/x", "http://huggingface.co", False),
        ("https://huggingface.co.evil.org/x", "https://huggingface.co", False),
        ("https://huggingface.co/x", "https://hub.in.house", True),
        ("https://huggingface.co:444/x", "https://hub.in.house", False),
        ("http://hub.in.house:8080/x", "http://hub.in.house:8080/mirror", True),
        ("http://hub.in.house/x", "http://hub.in.house:8080", False),
    ],
)
def test_a_hub_s_token_goes_to_the_hub_only(url: str, hub: str, expected: bool) -> None:
    assert Hub.at(hub).may_have_token(WebAddress.parse(url)) is expected


def test_a_set_names_each_file_once_with_the_projector_at_the_end() -> None:
    source = parse_source("hf://acme/tiny")
    assert file_set(source, ["q4/a-00001-of-00002.gguf", "q4/a-00002-of-00002.gguf"], "mmproj.gguf") == (
        "q4/a-00001-of-00002.gguf",
        "q4/a-00002-of-00002.gguf",
        "mmproj.gguf",
    )
    assert file_set(source, ["a.gguf", "mmproj.gguf"], "mmproj.gguf") == ("a.gguf", "mmproj.gguf")
    assert file_set(source, [], "") == ()


@pytest.mark.parametrize(
    ("address", "files", "mmproj", "field"),
    [
        ("https://example.com/x.gguf", ["a.gguf"], "", "spec.files"),
        ("pvc://claim/x.gguf", ["a.gguf"], "", "spec.files"),
        ("hf://acme/tiny", [], "mmproj.gguf", "spec.mmproj"),
        ("hf://acme/tiny", ["a.gguf", ""], "", "spec.files[1]"),
        ("hf://acme/tiny", ["/etc/passwd"], "", "spec.files[0]"),
        ("hf://acme/tiny", ["../a.gguf"], "", "spec.files[0]"),
        ("hf://acme/tiny", ["a/../../b.gguf"], "", "spec.files[0]"),
        ("hf://acme/tiny", ["a/./b.gguf"], "", "spec.files[0]"),
        ("hf://acme/tiny", ["a//b.gguf"], "", "spec.files[0]"),
        ("hf://acme/tiny", ["a\\..\\b.gguf"], "", "spec.files[0]"),
        ("hf://acme/tiny", ["a\nb.gguf"], "", "spec.files[0]"),
        ("hf://acme/tiny", ["*.gguf"], "", "spec.files[0]"),
        ("hf://acme/tiny", [".a.gguf.lock"], "", "spec.files[0]"),
        ("hf://acme/tiny", ["a" * 300], "", "spec.files[0]"),
        ("hf://acme/tiny", ["a.gguf", "a.gguf"], "", "spec.files[1]"),
        ("hf://acme/tiny", ["a", "a/b.gguf"], "", "spec.files"),
        ("hf://acme/tiny", ["a.gguf"], "../mmproj.gguf", "spec.mmproj"),
        ("hf://acme/tiny", [f"{n}.gguf" for n in range(1001)], "", "spec.files"),
    ],
)
def test_an_unsafe_set_is_refused_at_its_entry(address: str, files: list[str], mmproj: str, field: str) -> None:
    with pytest.raises(SpecInvalid) as caught:
        file_set(parse_source(address), files, mmproj)
    assert (caught.value.field, caught.value.reason) == (field, "InvalidFileSet")


@given(st.lists(st.text(max_size=20), max_size=4), st.text(max_size=20))
def test_what_a_set_admits_stays_below_its_directory(files: list[str], mmproj: str) -> None:
    try:
        entries = file_set(parse_source("hf://acme/tiny"), files, mmproj)
    except SpecInvalid as error:
        reason = error.reason
    else:
        for entry in entries:
            path = posixpath.normpath(posixpath.join("/models/key", entry))
            assert path == f"/models/key/{entry}"
        return
    assert reason == "InvalidFileSet"


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
