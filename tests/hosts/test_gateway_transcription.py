"""A transcription through the gateway: OpenAI's client sends a sound to a real llama-server with an audio encoder."""

from __future__ import annotations

import subprocess
import urllib.request
from collections.abc import Iterator
from pathlib import Path

import pytest
from prometheus_client import generate_latest

from gateway.engines.backends import Route
from gateway.names import Model, ServiceName
from gateway.server import GatewayServer
from tests.support.gateways import Front
from tests.support.loop import eventually
from tests.support.supervising import free_port
from tests.support.tiny_ears import tone, write_tiny_ears

TOKENS = 6
SOUND_TOKENS = 500
"""A sound has more tokens than this, and the prompt before it has fewer."""


def is_healthy(port: int) -> bool:
    try:
        with urllib.request.urlopen(f"http://127.0.0.1:{port}/health", timeout=5) as answer:
            return bool(answer.status == 200)
    except OSError:
        return False


@pytest.fixture
def engine(llama_server: Path, tiny_model: Path, tmp_path: Path) -> Iterator[int]:
    """The port of a llama-server."""
    port = free_port()
    command = [str(llama_server), "--model", str(tiny_model), "--mmproj", str(write_tiny_ears(tmp_path / "ears.gguf"))]
    command += ["--host", "127.0.0.1", "--port", str(port), "-c", "2048", "--parallel", "1"]
    with (tmp_path / "engine.log").open("wb") as log:
        process = subprocess.Popen(command, stdout=log, stderr=log)
    try:
        eventually(lambda: is_healthy(port), what="the llama-server", timeout_s=60)
        yield port
    finally:
        process.kill()
        process.wait()


def test_a_sound_is_transcribed(engine: int) -> None:
    import openai  # takes a second, so not in each test process

    front = Front(GatewayServer())
    try:
        front.serve_routes(Route(Model(ServiceName("prod", "ears")), (("127.0.0.1", engine),)))
        with openai.OpenAI(base_url=f"http://127.0.0.1:{front.port}/v1", api_key="none", timeout=120) as client:

            def transcribed(sound: bytes) -> tuple[str, int]:
                """Return the text, and how many tokens of the sound the engine knew already."""
                extra = {"max_tokens": str(TOKENS)}
                raw = client.audio.transcriptions.with_raw_response.create(
                    model="ears", file=("a.wav", sound, "audio/wav"), temperature=0, extra_body=extra
                )
                answer = raw.http_response.json()
                assert answer["usage"]["output_tokens"] == TOKENS
                return answer["text"], answer["usage"]["input_tokens_details"]["cached_tokens"]

            first, known = transcribed(tone(440))
            assert first and known < SOUND_TOKENS
            assert transcribed(tone(440))[1] > SOUND_TOKENS, "the same sound arrived, so the engine has its tokens"
            assert transcribed(tone(1200))[1] < SOUND_TOKENS, "another sound has other tokens"
        count = f'herdsman_gateway_tokens_total{{kind="completion",model="prod/ears"}} {3 * TOKENS:.1f}'
        eventually(lambda: count in metrics(front), what="the tokens of all three answers to be counted", timeout_s=60)
    finally:
        front.server.stop()


def metrics(front: Front) -> str:
    return generate_latest(front.server.book.metrics.registry).decode()
