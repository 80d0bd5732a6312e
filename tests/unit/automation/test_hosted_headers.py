"""Headers for services of KServe and llmaz on hosts, read from a real server as those of Models are."""

from __future__ import annotations

import queue
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from automation.hosts.host_contexts import lacks_context, with_contexts
from automation.models.hosted_headers import HostedHeaders
from automation.models.model_probe import ModelProbe, ProbeSettings, SourcePolicy
from program.desired.engines import LlamaCpp
from program.desired.keys import ServiceKey
from program.desired.model import SourceKind
from program.desired.service import DesiredService, HostContext, HostPlacement
from program.dialects.llmkube.parse.source import parse_source
from program.host_context import PENDING, HostRoom
from tests.support.builders import http_model, service
from tests.support.model_server import File, FileServer
from tools.tiny_model import Shape, write_tiny_model

pytestmark = pytest.mark.slow

GIB = 1 << 30
CHAT = ServiceKey("kserve", "ns", "chat")


def hosted(address: str, key: ServiceKey = CHAT) -> DesiredService:
    model = http_model(source=parse_source(address), file_name="model.gguf")
    return service(key=key, engine=LlamaCpp(), model=model, host_placement=HostPlacement(host="mac"))


def chosen(desired: DesiredService) -> DesiredService:
    return with_contexts(desired, {}, lambda *_: HostRoom(8 * GIB))


@pytest.fixture
def model(tmp_path: Path) -> Iterator[tuple[FileServer, str]]:
    write_tiny_model(tmp_path / "tiny.gguf", shape=Shape(context=16_384))
    with FileServer() as server:
        yield server, server.serve("/tiny.gguf", File((tmp_path / "tiny.gguf").read_bytes()))


@pytest.fixture
def probe() -> Iterator[ModelProbe]:
    made = ModelProbe(SourcePolicy(allowed_remote_hosts=("127.0.0.1",)), settings=ProbeSettings(timeout_s=60.0))
    yield made
    made.close()


def test_the_context_is_chosen_once_the_header_was_read(model: tuple[FileServer, str], probe: ModelProbe) -> None:
    asked: queue.Queue[tuple[ServiceKey, float]] = queue.Queue()
    headers = HostedHeaders(probe, lambda key, delay_s: asked.put((key, delay_s)))
    first = chosen(hosted(model[1]))
    assert lacks_context(first, {})
    assert lacks_context(chosen(headers.told(first)), {}), "the first answer does not wait for the server"
    deadline = time.monotonic() + 60
    while asked.get(timeout=max(0.0, deadline - time.monotonic())) != (CHAT, 0.0):
        pass
    told = chosen(headers.told(first))
    assert told.host_placement is not None
    assert told.host_placement.contexts == (HostContext(tokens=16_384, chosen="default"),)
    assert not lacks_context(told, {})


def test_what_serves_needs_no_header() -> None:
    desired = chosen(hosted("https://models.example/a.gguf"))
    assert desired.host_placement is not None and desired.host_placement.contexts == (PENDING,)
    assert not lacks_context(desired, {0: {"status": {"ready": True}}})


def test_models_and_files_of_a_host_are_not_read(model: tuple[FileServer, str], probe: ModelProbe) -> None:
    headers = HostedHeaders(probe, lambda *_: None)
    of_a_model = hosted(model[1], ServiceKey("llmkube", "ns", "chat"))
    of_a_host = hosted("file:///srv/a.gguf")
    assert of_a_host.model.source.kind is SourceKind.FILE
    on_host = of_a_host.model_copy(update={"model": of_a_host.model.model_copy(update={"cache_key": ""})})
    for desired in (of_a_model, on_host):
        assert headers.told(desired) == desired
    assert probe.idle() and model[0].requests == []
