"""A user's folders, and documents of services that load no engine."""

from __future__ import annotations

from pathlib import Path

import pytest

from automation.local.folders import LocalFolders


@pytest.fixture
def folders(tmp_path: Path) -> LocalFolders:
    made = LocalFolders(tmp_path / "config", tmp_path / "state", tmp_path / "store")
    made.make()
    return made
