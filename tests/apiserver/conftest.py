"""Fixtures of this layer for the shared control plane."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.support import controlplane


@pytest.fixture(scope="module")
def home(api: controlplane.Api) -> Iterator[str]:
    """One namespace for a module that empties it after each test: a new one for each costs some hundred requests."""
    with api.namespace() as name:
        yield name
