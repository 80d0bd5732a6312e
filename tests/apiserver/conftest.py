"""Fixtures of this layer for the shared control plane."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.support import controlplane


@pytest.fixture(scope="module")
def home(api: controlplane.Api) -> Iterator[str]:
    """A namespace for all tests of a module, which empty it. A new one for each test costs some hundred requests."""
    with api.namespace() as name:
        yield name
