"""Flags of different releases of llama.cpp."""

from __future__ import annotations

from agent.processes.flags import translated_flags

OLD = frozenset({"--mlock", "--ctx-size"})
NEW = frozenset({"--load-mode", "--ctx-size"})


def test_an_old_server_hears_the_old_words() -> None:
    assert translated_flags(["--mlock", "--ctx-size", "1"], OLD) == ["--mlock", "--ctx-size", "1"]


def test_a_new_server_hears_the_new_words() -> None:
    assert translated_flags(["--mlock", "--ctx-size", "1"], NEW) == ["--load-mode", "mmap+mlock", "--ctx-size", "1"]


def test_nothing_changes_for_a_server_that_could_not_be_asked() -> None:
    assert translated_flags(["--mlock"], frozenset()) == ["--mlock"]


def test_a_flag_that_nobody_knows_is_left_to_the_engines_own_error() -> None:
    assert translated_flags(["--made-up", "x"], NEW) == ["--made-up", "x"]
