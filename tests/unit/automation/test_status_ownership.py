"""The owner of a status."""

from __future__ import annotations

from typing import Any

import pytest

from automation.status.ownership import written_by_another


@pytest.mark.parametrize(
    ("status", "expected"),
    [
        (None, False),
        ({}, False),
        ({"phase": "Ready"}, True),
        ({"phase": "Ready", "conditions": [{"type": "Available"}]}, True),
        ({"phase": "Ready", "conditions": [{"type": "Available"}, {"type": "Ready"}]}, False),
    ],
)
def test_a_status_of_ours_is_known_by_its_ready_condition(status: dict[str, Any] | None, expected: bool) -> None:
    assert written_by_another(status) is expected
