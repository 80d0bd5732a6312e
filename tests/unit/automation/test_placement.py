"""Which host a service gets."""

from __future__ import annotations

from automation.admission.placement import LiveHost, place


def test_a_pin_wins_even_while_its_host_is_away() -> None:
    assert place(pinned="mac", current="other", hosts=()) == "mac"


def test_a_placed_service_stays_although_its_host_is_silent() -> None:
    assert place(pinned=None, current="mac", hosts=(LiveHost("other"),)) == "mac"


def test_the_host_with_fewest_processes_wins_and_the_name_decides_between_equals() -> None:
    hosts = (LiveHost("b", 1), LiveHost("c", 0), LiveHost("a", 1))
    assert place(pinned=None, current=None, hosts=hosts) == "c"
    assert place(pinned=None, current=None, hosts=(LiveHost("b"), LiveHost("a"))) == "a"


def test_without_a_host_there_is_no_place() -> None:
    assert place(pinned=None, current=None, hosts=()) is None
