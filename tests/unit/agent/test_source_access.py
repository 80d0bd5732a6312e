"""The sources of plans, and the host's credentials: which server gets which."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from agent.contract import FilePlan
from agent.server.models.repository import Repository, keep, listed
from agent.server.models.source_access import Credentials, SourceAccess
from agent.sources.errors import PlanInvalid, StoreFailed
from program.desired.hub import HUB, Hub

S3 = {"AWS_ACCESS_KEY_ID": "id", "AWS_SECRET_ACCESS_KEY": "secret", "AWS_ENDPOINT_URL": "https://s3.lan:9000"}
TOKEN = SourceAccess(Credentials(hub_token="hf_x"))


def authorized(access: SourceAccess, source: str) -> tuple[str, bool]:
    place = access.request_for(source)
    return place.url.sent, place.signer is not None and "Authorization" in place.signer.headers(place.url)


@pytest.mark.parametrize(
    ("source", "expected"),
    [
        ("https://huggingface.co/o/r/resolve/main/m.gguf", True),
        ("https://hf.co/o/r/resolve/main/m.gguf", True),
        ("http://huggingface.co/o/r/resolve/main/m.gguf", False),
        ("https://huggingface.co.evil.example/m.gguf", False),
        ("https://example.com/huggingface.co/m.gguf", False),
        ("https://huggingface.co:8443/m.gguf", False),
    ],
)
def test_the_hubs_token_goes_to_the_hub_and_encrypted(source: str, expected: bool) -> None:
    assert authorized(TOKEN, source) == (source, expected)


def test_a_stand_in_for_the_hub_is_asked_instead_with_the_token() -> None:
    access = SourceAccess(Credentials(hub_token="hf_x"), Hub.at("http://hub.lan:8000"))
    at = "/o/r/resolve/main/m.gguf"
    assert authorized(access, f"{HUB}{at}?download=1") == (f"http://hub.lan:8000{at}?download=1", True)
    assert authorized(access, f"http://hub.lan:8000{at}") == (f"http://hub.lan:8000{at}", True)
    assert authorized(access, f"http://hub.lan:8001{at}") == (f"http://hub.lan:8001{at}", False)


def test_s3_goes_to_its_endpoint_signed_with_keys_and_unsigned_without() -> None:
    access = SourceAccess.of_host(None, S3)
    assert authorized(access, "s3://bucket/a b/m.gguf") == ("https://s3.lan:9000/bucket/a%20b/m.gguf", True)
    anonymous = SourceAccess.of_host(None, {"AWS_REGION": "eu-central-1"})
    assert authorized(anonymous, "s3://b/m.gguf") == ("https://s3.eu-central-1.amazonaws.com/b/m.gguf", False)


@pytest.mark.parametrize(
    "source",
    [
        "https://evil.example\\@huggingface.co/o/r/resolve/main/m.gguf",
        "https://huggingface.co\\@evil.example/m.gguf",
        "https://user:secret@huggingface.co/o/r/resolve/main/m.gguf",
        "https://huggingface.co@evil.example/m.gguf",
        "https://evil.example\t@huggingface.co/m.gguf",
        "https://huggingface.co:0/m.gguf",
        "s3://bucket/a/../../other/m.gguf",
        "s3://bucket\\@evil.example/m.gguf",
    ],
)
def test_an_address_with_two_readings_is_no_place(source: str) -> None:
    for access in (TOKEN, SourceAccess(TOKEN.credentials, Hub.at("https://hub.lan"))):
        with pytest.raises(PlanInvalid) as caught:
            access.request_for(source)
        assert "secret" not in caught.value.message


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("HF_ENDPOINT", "https://evil.example\\@huggingface.co"),
        ("HF_ENDPOINT", "https://me:pw@hub.lan"),
        ("AWS_ENDPOINT_URL", "http://me:pw@s3.lan"),
    ],
)
def test_an_endpoint_with_two_readings_is_named(name: str, value: str) -> None:
    with pytest.raises(StoreFailed, match=name) as caught:
        SourceAccess.of_host(None, {name: value})
    assert "pw" not in caught.value.message


@pytest.mark.parametrize("source", ["s3://bucket", "s3:///key", "pvc://c/m.gguf", "hf://o/r", "ftp://x/y", "m.gguf"])
def test_what_is_no_file_is_a_fault_of_the_plan(source: str) -> None:
    with pytest.raises(PlanInvalid):
        TOKEN.request_for(source)


def test_credentials_come_from_a_file_or_a_directory_and_else_from_the_environment(tmp_path: Path) -> None:
    environment = {"HF_TOKEN": "env", "HF_ENDPOINT": "https://mirror/", "SOURCE_TOKEN": "never sent", "PATH": "/bin"}
    own = SourceAccess.of_host(None, environment)
    assert (own.credentials, own.hub.url) == (Credentials(hub_token="env"), "https://mirror")
    text = tmp_path / "credentials"
    text.write_text("# ours\nexport HF_TOKEN='file'\n\nAWS_REGION=eu\nLD_PRELOAD=x\n")
    assert SourceAccess.of_host(text, environment).credentials == Credentials(hub_token="file", region="eu")
    folder = tmp_path / "secret"
    folder.mkdir()
    (folder / "HF_TOKEN").write_text("folder\n")
    assert SourceAccess.of_host(folder, {}).credentials == Credentials(hub_token="folder")
    with pytest.raises(StoreFailed, match="none"):
        SourceAccess.of_host(tmp_path / "none", {})
    assert "file" not in repr(SourceAccess.of_host(text, {}))


def test_repositories_are_named_with_an_optional_revision() -> None:
    assert Repository.of("hf://org/name") == Repository("org/name", "main")
    assert Repository.of("hf://org/name@refs/pr/1") == Repository("org/name", "refs/pr/1")
    for source in ("hf://org", "hf://org/name/file", "hf://../x", "hf:///name"):
        with pytest.raises(PlanInvalid):
            Repository.of(source)


def test_a_list_counts_only_for_its_own_source(tmp_path: Path) -> None:
    plan = FilePlan(source="hf://o/r@v1", cache_key="k", file_name="r", directory=True)
    files = (FilePlan(source="https://x/a", cache_key="k", file_name="a", sha256="ab", size_bytes=3),)
    assert listed(plan, tmp_path) is None
    keep(plan, files, tmp_path)
    assert listed(plan, tmp_path) == files
    assert listed(plan.model_copy(update={"source": "hf://o/r@v2"}), tmp_path) is None
    (tmp_path / ".repository.json").write_text(json.dumps({"source": plan.source, "files": [{"x": 1}]}))
    assert listed(plan, tmp_path) is None
