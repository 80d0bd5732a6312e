"""The fields that a program leaves out of its registrations. `tests/contract/test_engine.py` checks them in a state."""

from __future__ import annotations

import pytest
from pulumi.runtime import resource

from program.registration import reduce_debug_data


def test_no_python_stack_is_taken_for_a_registration(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(resource, "_get_stack_trace", resource._get_stack_trace)
    assert "_get_stack_trace" in resource.register_resource.__code__.co_names, "the SDK calls it by another name now"
    reduce_debug_data()
    taken = resource._get_stack_trace()
    assert not taken.frames
    assert resource._get_source_position(taken) is None
