"""Servers that stand in for providers, and end with their test."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.support.gateways import OK, Answer
from tests.support.routed_providers import Make
from tests.support.tls_server import TlsServer


@pytest.fixture
def make_provider(tmp_path: Path) -> Iterator[Make]:
    made: list[TlsServer] = []

    def make(answer: Answer = OK, **options: Any) -> TlsServer:
        made.append(TlsServer(answer, tmp_path, **options))
        return made[-1]

    yield make
    for each in made:
        each.close()
