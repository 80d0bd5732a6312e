"""The price of a model's tokens. Pure; read from an annotation of its service."""

from __future__ import annotations

from dataclasses import dataclass
from decimal import Decimal, InvalidOperation

NANO_USD_PER_USD = 1_000_000_000
_PER_TOKEN = 1000
"""One dollar for a million tokens, in billionths of a dollar for one token."""
MOST_SUM = 1 << 62
"""The databases of the accounts hold no larger sum."""


@dataclass(frozen=True)
class Price:
    """Billionths of a US dollar for each token."""

    prompt: int = 0
    completion: int = 0

    def of(self, prompt: int, completion: int) -> int:
        """Return the price of some tokens, in billionths of a US dollar."""
        return min(prompt * self.prompt + completion * self.completion, MOST_SUM)

    @classmethod
    def read(cls, text: str) -> Price:
        """Read dollars for a million tokens: `0.15/0.60` for prompt and completion, or one number for both.

        Raises ValueError.
        """
        prompt, _, completion = text.partition("/")
        return cls(_nano_usd(prompt), _nano_usd(completion or prompt))


FREE = Price()


def usd(text: str) -> int:
    """Read an amount of US dollars; return billionths. Raises ValueError."""
    return _decimal(text, NANO_USD_PER_USD)


def nano_usd(dollars: Decimal) -> int:
    """Return billionths of a US dollar for one token, from US dollars for a million tokens."""
    return int((dollars * _PER_TOKEN).to_integral_value())


def _nano_usd(text: str) -> int:
    return _decimal(text, _PER_TOKEN)


def _decimal(text: str, factor: int) -> int:
    try:
        value = Decimal(text.strip())
    except InvalidOperation:
        raise ValueError(f"`{text}` is not a number") from None
    if not value.is_finite() or not 0 <= value <= 1_000_000:
        raise ValueError(f"`{text}` is not between 0 and 1,000,000")
    return int((value * factor).to_integral_value())
