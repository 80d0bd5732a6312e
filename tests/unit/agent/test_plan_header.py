"""The header of a plan's model before its download: from a path, from the store, and by ranges from a real server."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

import pytest

from agent.contract import FilePlan
from agent.server.models.plan_header import read_plan_header
from agent.server.models.source_access import SourceAccess
from agent.sources.errors import FileError, GgufInvalid, SourceNotFound, SourceRefused, StoreFailed
from agent.sources.source_policy import SourcePolicy
from program.desired.model import GgufFacts
from tests.support.model_server import File, FileServer
from tools.tiny_model import Shape, write_tiny_model

KEY = "0123456789abcdef"
ANYWHERE = SourcePolicy(allowed_remote_hosts=("127.0.0.1",), allowed_host_path_roots=("/",))


@pytest.fixture
def server() -> Iterator[FileServer]:
    with FileServer() as running:
        yield running


@pytest.fixture
def model(tmp_path: Path) -> Path:
    return write_tiny_model(tmp_path / "m.gguf", shape=Shape(context=4096))


def plan(source: str, name: str = "m.gguf") -> FilePlan:
    return FilePlan(source=source, cache_key=KEY, file_name=name)


def read(*files: FilePlan, store: Path | None = None, policy: SourcePolicy = ANYWHERE) -> GgufFacts:
    return read_plan_header(files, store=store, access=SourceAccess.of_host(None, {"HOME": "/"}), policy=policy)


def test_a_file_of_this_machine_is_read_at_its_path(model: Path) -> None:
    assert read(plan(f"file://{model}")).context_length == read(plan(str(model))).context_length == 4096
    with pytest.raises(SourceRefused):
        read(plan(str(model)), policy=SourcePolicy())


def test_a_downloaded_file_is_read_from_the_store_without_its_server(model: Path, tmp_path: Path) -> None:
    store = tmp_path / "store"
    (store / KEY).mkdir(parents=True)
    (store / KEY / "m.gguf").write_bytes(model.read_bytes())
    assert read(plan("https://nowhere.invalid/m.gguf"), store=store).context_length == 4096


def test_another_file_is_read_by_ranges_and_a_set_has_the_size_of_all_files(server: FileServer, model: Path) -> None:
    first = server.serve("/m-1.gguf", File(model.read_bytes() + bytes(1 << 24)))
    second = server.serve("/m-2.gguf", File(bytes(1000)))
    assert read(plan(first)).context_length == 4096
    facts = read(plan(first), plan(second, "n.gguf"))
    assert facts.weights_bytes == model.stat().st_size + (1 << 24) + 1000


def test_what_cannot_be_read_is_an_error_of_the_file(server: FileServer, tmp_path: Path) -> None:
    (tmp_path / "short.gguf").write_bytes(b"GGUF\x03\x00\x00\x00")
    for source, error in (
        (str(tmp_path / "gone.gguf"), SourceNotFound),
        (str(tmp_path / "short.gguf"), GgufInvalid),
        (server.url("/gone.gguf"), SourceNotFound),
        ("hf://org/repo", FileError),
    ):
        with pytest.raises(error):
            read(plan(source))


def test_a_path_that_is_no_regular_file_is_not_opened(tmp_path: Path) -> None:
    """Opening a named pipe would wait for its writer."""
    pipe = tmp_path / "m.gguf"
    os.mkfifo(pipe)
    for each in (pipe, tmp_path):
        with pytest.raises(StoreFailed, match="is not a regular file"):
            read(plan(str(each)))
