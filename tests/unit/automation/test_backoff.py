"""The back-off formula and the failure counts."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from automation.workqueue.backoff import Backoff, backoff_s

SECONDS = st.floats(min_value=0.001, max_value=1000.0)
JITTER = st.floats(min_value=0.0, max_value=1.0)


def test_no_failure_means_no_wait() -> None:
    assert backoff_s(0, base_s=1.0, cap_s=60.0, jitter=0.5) == 0.0


def test_each_failure_doubles_the_wait_until_the_cap() -> None:
    waits = [backoff_s(n, base_s=1.0, cap_s=10.0, jitter=0.0) for n in range(1, 7)]
    assert waits == [1.0, 2.0, 4.0, 8.0, 10.0, 10.0]


def test_full_jitter_halves_the_wait() -> None:
    assert backoff_s(3, base_s=1.0, cap_s=10.0, jitter=1.0) == 2.0


@given(failures=st.integers(min_value=1, max_value=10**6), base_s=SECONDS, cap_s=SECONDS, jitter=JITTER)
def test_the_wait_lies_between_half_and_the_whole_of_the_exponential(
    failures: int, base_s: float, cap_s: float, jitter: float
) -> None:
    whole_s = backoff_s(failures, base_s=base_s, cap_s=cap_s, jitter=0.0)
    assert whole_s <= cap_s
    assert whole_s / 2 <= backoff_s(failures, base_s=base_s, cap_s=cap_s, jitter=jitter) <= whole_s


@given(failures=st.integers(min_value=1, max_value=100), base_s=SECONDS, cap_s=SECONDS)
def test_the_wait_never_shrinks_as_failures_go_on(failures: int, base_s: float, cap_s: float) -> None:
    one = backoff_s(failures, base_s=base_s, cap_s=cap_s, jitter=0.0)
    assert backoff_s(failures + 1, base_s=base_s, cap_s=cap_s, jitter=0.0) >= one


def test_keys_fail_apart_and_start_afresh_when_forgotten() -> None:
    backoff: Backoff[str] = Backoff(base_s=1.0, cap_s=60.0, dice=lambda: 0.0)
    assert [backoff.failed("a"), backoff.failed("a"), backoff.failed("b")] == [1.0, 2.0, 1.0]
    assert (backoff.failures("a"), backoff.failures("b"), backoff.failures("c")) == (2, 1, 0)
    backoff.reset("a")
    assert backoff.failures("a") == 0
    assert backoff.failed("a") == 1.0
