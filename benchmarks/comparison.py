"""Compares the ratios of several rounds with recorded ones, and judges each measure. Pure; called by `check`.

A measure is a cost: less is better. Its ratio is its value divided by a reference that was measured in the same round,
so that a slower machine changes both.
"""

from __future__ import annotations

import enum
import statistics
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

MAX_LOSS = 0.15
"""The largest accepted increase of a ratio, as a share of the recorded one."""
TOLERANCE = 0.15
"""The largest spread with which a median of a measure is taken as it is."""


class Verdict(enum.Enum):
    """The result of one measure."""

    HELD = "held"
    LOST = "lost"
    """The ratio grew by more than MAX_LOSS."""
    NOISY = "noisy"
    """The rounds differ too much to tell whether the ratio grew."""
    NEW = "new"
    """There is no recorded ratio."""


@dataclass(frozen=True)
class Comparison:
    """One measure: its recorded ratio and the ratios of the rounds."""

    measure: str
    baseline: float | None
    ratios: tuple[float, ...]
    tolerance: float = TOLERANCE

    @property
    def now(self) -> float:
        """The median of the rounds."""
        return statistics.median(self.ratios)

    @property
    def loss(self) -> float | None:
        """The increase of the ratio as a share of the recorded one; negative for a gain, None without a record."""
        return None if self.baseline is None else self.now / self.baseline - 1

    @property
    def spread(self) -> float:
        """The distance of the quartiles as a share of the median."""
        return spread(self.ratios)

    @property
    def verdict(self) -> Verdict:
        """Noise hides no clear case: if every round is beyond the limit, or every round within it, that decides."""
        if self.baseline is None:
            return Verdict.NEW
        beyond = [ratio > self.baseline * (1 + MAX_LOSS) for ratio in self.ratios]
        if all(beyond):
            return Verdict.LOST
        if not any(beyond):
            return Verdict.HELD
        if self.spread > self.tolerance:
            return Verdict.NOISY
        return Verdict.LOST if self.now > self.baseline * (1 + MAX_LOSS) else Verdict.HELD


def spread(values: Sequence[float]) -> float:
    """Return the distance of the quartiles as a share of the median; 0 for one value.

    A single round that another process disturbed moves the quartiles little, if there are four rounds or more.
    """
    if len(values) < 2:
        return 0.0
    lower, middle, upper = statistics.quantiles(values, n=4, method="inclusive")
    return (upper - lower) / middle


def compare(
    baseline: Mapping[str, float], rounds: Sequence[Mapping[str, float]], tolerances: Mapping[str, float]
) -> list[Comparison]:
    """Return the comparison of each measure that all rounds have. A measure without a tolerance has TOLERANCE.

    Raises:
        ValueError: the baseline has a measure that the rounds lack. A lost measure would otherwise pass unseen.
    """
    shared = [name for name in rounds[0] if all(name in each for each in rounds)]
    if missing := [name for name in baseline if name not in shared]:
        raise ValueError(f"the baseline has measures that no longer exist: {', '.join(missing)}. Record a new one.")
    return [
        Comparison(
            name,
            baseline.get(name),
            tuple(each[name] for each in rounds),
            tolerances.get(name, TOLERANCE),
        )
        for name in shared
    ]


def needs_more(comparisons: Iterable[Comparison]) -> bool:
    """Return whether another round could change a verdict that matters: a loss or a noisy measure."""
    return any(each.verdict in (Verdict.LOST, Verdict.NOISY) for each in comparisons)


def ratios(values: Mapping[str, float], references: Mapping[str, float]) -> dict[str, float]:
    """Divide the measures of one round by the references of the same names; leave out those without a reference."""
    return {name: value / references[name] for name, value in values.items() if references.get(name)}
