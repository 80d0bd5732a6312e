"""What several modules of this layer ask of the control plane that they share."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.support import controlplane


@pytest.fixture(scope="module")
def home(api: controlplane.Api) -> Iterator[str]:
    """One namespace for a module that empties it after each test: a new one for each costs some hundred requests."""
    with api.namespace() as name:
        yield name
