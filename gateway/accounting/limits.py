"""The limits of a caller: requests and tokens in a minute, and budgets. Pure.

A window is fixed: a minute of the clock, or a budget's period since its key was made. What a request may cost at most
is reserved before it is sent. What it did cost is charged afterwards, to the window in which it was reserved.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from enum import StrEnum

from gateway.errors import GatewayError

MINUTE_S = 60


class Unit(StrEnum):
    """What a limit counts."""

    REQUESTS = "requests"
    TOKENS = "tokens"
    NANO_USD = "nano-usd"
    """A billionth of a US dollar. One dollar for a million tokens are 1,000 for a token."""


@dataclass(frozen=True)
class Limit:
    """At most `maximum` in each window."""

    scope: str
    """Identifies the counter in the store; the same for all gateways."""
    unit: Unit
    maximum: int
    window_s: int = MINUTE_S
    origin_s: int = 0
    """A time at which a window begins, in seconds since 1970."""
    is_budget: bool = False
    """It is used up, rather than too fast: clients should not try again soon."""
    owner: str = "your API key"
    """Whose limit it is, for errors."""

    def window(self, now_s: float) -> int:
        """Return when the window of a time begins, in seconds since 1970."""
        return self.origin_s + (int(now_s) - self.origin_s) // self.window_s * self.window_s


@dataclass(frozen=True)
class Cost:
    """What a request costs, or may cost at most."""

    tokens: int = 0
    nano_usd: int = 0

    def of(self, unit: Unit) -> int:
        """Return the amount that a limit counts."""
        match unit:
            case Unit.REQUESTS:
                return 1
            case Unit.TOKENS:
                return self.tokens
            case Unit.NANO_USD:
                return self.nano_usd


@dataclass(frozen=True)
class Standing:
    """How much of a limit is used in a window, over all gateways."""

    limit: Limit
    window: int
    used: int
    """Charged and reserved."""

    @property
    def remaining(self) -> int:
        """How much is left."""
        return max(0, self.limit.maximum - self.used)

    def resets_in_s(self, now_s: float) -> int:
        """Return the seconds until the next window begins, at least one."""
        return max(1, math.ceil(self.window + self.limit.window_s - now_s))


def headers(standings: tuple[Standing, ...], now_s: float) -> tuple[tuple[str, str], ...]:
    """Return OpenAI's headers for the limits of a minute."""
    found: list[tuple[str, str]] = []
    for each in standings:
        if not each.limit.is_budget:
            unit = each.limit.unit
            found.append((f"x-ratelimit-limit-{unit}", str(each.limit.maximum)))
            found.append((f"x-ratelimit-remaining-{unit}", str(each.remaining)))
            found.append((f"x-ratelimit-reset-{unit}", f"{each.resets_in_s(now_s)}s"))
    return tuple(found)


def refusal(standing: Standing, amount: int, standings: tuple[Standing, ...], now_s: float) -> GatewayError:
    """Return the error for a request that a limit does not allow."""
    limit, reset_s = standing.limit, standing.resets_in_s(now_s)
    told = headers(standings, now_s)
    if limit.is_budget:
        message = (
            f"the budget of {limit.owner}, {_amount(limit.unit, limit.maximum)}, does not suffice for this request: "
            f"{_amount(limit.unit, standing.remaining)} are left for {reset_s} s, and it may need "
            f"{_amount(limit.unit, amount)}"
        )
        told += (("x-should-retry", "false"),)
        return GatewayError(429, "insufficient_quota", message, retry_after_s=reset_s, headers=told)
    message = f"your API key allows {_amount(limit.unit, limit.maximum)} a minute"
    if amount > limit.maximum:
        message += f", and this request may need {_amount(limit.unit, amount)}; lower its `max_tokens`"
        told += (("x-should-retry", "false"),)
    else:
        message += f"; try again in {reset_s} s"
    return GatewayError(429, "rate_limit_exceeded", message, retry_after_s=reset_s, headers=told)


def _amount(unit: Unit, number: int) -> str:
    if unit is Unit.NANO_USD:
        return f"{number / 1e9:.6g} USD"
    return f"{number} {unit}"
