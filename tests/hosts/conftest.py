"""Fixtures of the host layer: a tiny real model, a web server of one file, and a stack of the real Pulumi CLI."""

from __future__ import annotations

import functools
import http.server
import os
import sys
import threading
from collections.abc import Iterator
from pathlib import Path

import pulumi.automation as auto
import pytest

from tests.engine.stacks import Stack
from tools.tiny_model import write_tiny_model


@pytest.fixture(scope="session")
def tiny_model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A real GGUF model of half a megabyte, alone in its folder."""
    return write_tiny_model(tmp_path_factory.mktemp("models") / "tiny.gguf")


@pytest.fixture
def model_url(tiny_model: Path) -> Iterator[str]:
    """The tiny model behind a web server on loopback."""

    class Quiet(http.server.SimpleHTTPRequestHandler):
        def log_message(self, format: str, *args: object) -> None:
            pass

    handler = functools.partial(Quiet, directory=str(tiny_model.parent))
    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), handler) as server:
        thread = threading.Thread(target=server.serve_forever, args=(0.02,), daemon=True)
        thread.start()
        yield f"http://127.0.0.1:{server.server_address[1]}/{tiny_model.name}"
        server.shutdown()
        thread.join()


@pytest.fixture
def stack(tmp_path: Path, pulumi_cli: Path) -> Stack:
    """An empty stack whose CLI finds the plugins of this environment."""
    command = auto.PulumiCommand(root=str(pulumi_cli.parent.parent), skip_version_check=True)
    return Stack(
        tmp_path / "stack", command, {"PATH": f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"}
    )
