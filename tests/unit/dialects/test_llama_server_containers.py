"""Containers of llama.cpp whose spec a custom resource describes: which of them get arguments for adapters."""

from __future__ import annotations

from typing import Any

import pytest

from program.desired.adapter import AdapterReason
from program.dialects.pods.llama_server import OLDEST_BUILD, why_no_arguments

OURS = "ghcr.io/ggml-org/llama.cpp"


@pytest.mark.parametrize(
    "container",
    [
        {"image": f"{OURS}:server"},
        {"image": f"{OURS}:server-cuda-b{OLDEST_BUILD}", "args": ["-m", "/m.gguf"]},
        {"image": f"registry:5000/mirror/ggml-org/llama.cpp:server-b11434@sha256:{'0' * 64}"},
        {"image": f"{OURS}:full", "command": ["/app/llama-server", "-m", "/m.gguf"]},
        {"image": f"{OURS}:server", "command": ["./llama-server"], "args": ["--cache-ram", "0"]},
        {"image": f"{OURS}:server", "args": ["-cram", "4096", "--cache-ram=0"]},
    ],
)
def test_llama_server_of_a_known_image_gets_arguments(container: dict[str, Any]) -> None:
    assert why_no_arguments(container) == (None, "")


@pytest.mark.parametrize(
    ("container", "said"),
    [
        (
            {"image": "corp/llama-server:1", "command": ["/app/llama-server"]},
            "`corp/llama-server:1` is not",
        ),
        ({"image": "corp/my-ggml-org/llama.cpp:server"}, "is not llama.cpp's own"),
        ({}, "image `` is not llama.cpp's own"),
        ({"image": "ghcr.io/ggerganov/llama.cpp:server"}, "use one of ggml-org/llama.cpp with build 8000"),
        ({"image": f"{OURS}:server-cuda-b7999"}, "build 7999 of image"),
        ({"image": f"{OURS}@sha256:{'0' * 64}", "command": ["llama-server"]}, "name the build in the tag"),
        ({"image": f"{OURS}:server", "command": ["/bin/sh", "-c", "exec llama-server"]}, "starts `/bin/sh`"),
        ({"image": f"{OURS}:server", "command": ["rpc-server"]}, "starts `rpc-server`"),
        ({"image": f"{OURS}:full"}, "does not start llama-server by itself"),
    ],
)
def test_another_container_gets_no_arguments_and_the_message_has_the_cause(
    container: dict[str, Any], said: str
) -> None:
    reason, message = why_no_arguments({"name": "main", **container})
    assert reason is AdapterReason.SOURCE_NOT_SUPPORTED
    assert said in message and "set spec.path" in message


@pytest.mark.parametrize("words", [["--cache-ram", "4096"], ["--cache-ram=-1"], ["-cram", "8192"]])
def test_cached_prompts_of_other_adapters_are_a_cause(words: list[str]) -> None:
    reason, message = why_no_arguments({"image": f"{OURS}:server", "args": words})
    assert reason is AdapterReason.NOT_IN_ARGUMENTS
    assert "set --cache-ram 0 in its arguments" in message
