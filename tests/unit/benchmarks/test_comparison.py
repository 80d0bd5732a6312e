"""The judgement of a measure by the ratios of several rounds."""

from __future__ import annotations

import pytest

from benchmarks.comparison import Comparison, Verdict, compare, needs_more, ratios, spread


@pytest.mark.parametrize(
    ("now", "verdict"),
    [
        # Three rounds of "create 100" against a reference, on two idle cores.
        ((1.71, 1.74, 1.69), Verdict.HELD),
        ((1.95, 1.93, 1.97), Verdict.HELD),  # 14.7 % more than 1.70
        ((1.97, 1.98, 1.96), Verdict.LOST),  # 15.9 % more
        ((1.20, 1.22, 1.19), Verdict.HELD),  # a gain
        # One round was disturbed by another process.
        ((1.71, 1.70, 2.90), Verdict.NOISY),
        ((1.71, 1.70, 1.72, 2.90), Verdict.NOISY),
        ((1.71, 1.70, 1.72, 1.69, 2.90), Verdict.HELD),
        # The rounds differ by a third, but each one is beyond the limit.
        ((2.40, 3.20, 2.10), Verdict.LOST),
        # They differ by a third, and each one is within the limit.
        ((1.20, 1.90, 1.40), Verdict.HELD),
        # Noisy, and most rounds are beyond the limit: not all, so this is no loss yet.
        ((1.60, 2.10, 2.60), Verdict.NOISY),
    ],
)
def test_a_measure_is_judged_by_its_median_unless_the_rounds_differ(now: tuple[float, ...], verdict: Verdict) -> None:
    assert Comparison("create 100", 1.70, now).verdict is verdict


def test_the_loss_is_a_share_of_the_baseline() -> None:
    found = Comparison("change", 2.0, (2.5, 2.4, 2.6))
    assert found.now == 2.5
    assert found.loss == pytest.approx(0.25)


def test_a_measure_with_a_larger_tolerance_is_not_noisy() -> None:
    rounds = (1.40, 2.05, 2.10)
    assert Comparison("restart", 1.70, rounds).verdict is Verdict.NOISY
    assert Comparison("restart", 1.70, rounds, tolerance=0.3).verdict is Verdict.LOST


def test_a_measure_without_a_record_is_new() -> None:
    found = Comparison("requests", None, (1.0, 1.0))
    assert found.verdict is Verdict.NEW
    assert found.loss is None


def test_the_spread_is_the_distance_of_the_quartiles() -> None:
    assert spread([2.0]) == 0
    assert spread([1.0, 2.0, 3.0]) == pytest.approx(0.5)
    assert spread([1.0, 1.0, 1.0, 1.0, 9.0]) == 0


def test_only_a_loss_or_noise_needs_more_rounds() -> None:
    held = Comparison("create", 1.0, (1.0, 1.1))
    assert not needs_more([held, Comparison("fresh", None, (1.0, 5.0))])
    assert needs_more([held, Comparison("change", 1.0, (1.3, 1.4))])
    assert needs_more([held, Comparison("change", 1.0, (0.9, 1.4))])


def test_a_ratio_belongs_to_one_round() -> None:
    """A machine that is slow for one round changes the value and the reference."""
    quick = ratios({"create": 4.0, "change": 0.5}, {"create": 2.0, "change": 2.0})
    slow = ratios({"create": 8.0, "change": 1.0}, {"create": 4.0, "change": 4.0})
    assert quick == slow == {"create": 2.0, "change": 0.25}


def test_a_value_without_a_reference_has_no_ratio() -> None:
    assert ratios({"create": 4.0, "restart": 1.0, "requests": 3.0}, {"create": 2.0, "requests": 0.0}) == {"create": 2.0}


def test_rounds_are_compared_by_measure() -> None:
    rounds = [{"create": 1.0, "change": 2.0}, {"create": 1.1, "change": 2.1, "extra": 1.0}]
    create, change = compare({"create": 1.0}, rounds, {"change": 0.5})
    assert (create.measure, create.baseline, create.ratios) == ("create", 1.0, (1.0, 1.1))
    assert (change.measure, change.baseline, change.tolerance) == ("change", None, 0.5)


def test_a_measure_of_the_baseline_cannot_vanish() -> None:
    with pytest.raises(ValueError, match="no longer exist: memory"):
        compare({"create": 1.0, "memory": 1.0}, [{"create": 1.0}], {})
