"""The limits that a key was made with. Pure; `key_secrets` keeps them in the key's Secret."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any

from gateway.accounting.limits import Limit, Unit

DEFAULT_WINDOW_S = 30 * 86400


@dataclass(frozen=True)
class KeyLimits:
    """The limits of one key; None: no limit."""

    requests_per_minute: int | None = None
    tokens_per_minute: int | None = None
    budget_tokens: int | None = None
    budget_nano_usd: int | None = None
    budget_window_s: int = DEFAULT_WINDOW_S
    budget_origin_s: int = 0
    """When the first period of the budgets began, in seconds since 1970."""

    def limits(self, key_id: str) -> tuple[Limit, ...]:
        """Return the limits, with their counters."""
        minute = ((Unit.REQUESTS, self.requests_per_minute), (Unit.TOKENS, self.tokens_per_minute))
        budgets = ((Unit.TOKENS, self.budget_tokens), (Unit.NANO_USD, self.budget_nano_usd))
        found = [Limit(f"key/{key_id}/minute/{unit}", unit, maximum) for unit, maximum in minute if maximum is not None]
        found += [
            Limit(
                f"key/{key_id}/budget/{unit}", unit, maximum, self.budget_window_s, self.budget_origin_s, is_budget=True
            )
            for unit, maximum in budgets
            if maximum is not None
        ]
        return tuple(found)

    def as_settings(self) -> dict[str, int]:
        """Return the limits as JSON; empty without any limit."""
        given = {name: value for name, value in asdict(self).items() if value is not None}
        return given if self.limits("") else {}

    @classmethod
    def of_settings(cls, settings: Mapping[str, Any]) -> KeyLimits:
        """Read limits from JSON. Raises ValueError, TypeError for values of other shapes."""
        made = cls(**settings)
        for name, value in settings.items():
            if not isinstance(value, int) or isinstance(value, bool) or value < 0:
                raise ValueError(f"{name} is not a number")
        if made.budget_window_s < 1:
            raise ValueError("budget_window_s is not positive")
        return made
