"""Measures a service with several clients at once. Used by `herdsman bench`."""

from __future__ import annotations

import math
import time
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, dataclass

from automation.chat.completions import CompletionFailed, Completions, Measured

_WORDS = "Describe a meadow with sheep in spring, and mention each colour that a visitor sees there."


@dataclass(frozen=True)
class Percentiles:
    """Percentiles of seconds, by the nearest rank."""

    p50: float
    p95: float
    p99: float

    @classmethod
    def of(cls, values: Sequence[float]) -> Percentiles:
        """Compute them. Raises ValueError for no values."""
        ordered = sorted(values)
        if not ordered:
            raise ValueError("no values")
        return cls(*(ordered[max(0, math.ceil(share * len(ordered)) - 1)] for share in (0.5, 0.95, 0.99)))


@dataclass(frozen=True)
class Round:
    """The result of one number of clients."""

    clients: int
    requests: int
    failed: int
    seconds: float
    prompt_tokens: int
    tokens: int
    tokens_per_s: float
    """Tokens of all answers, by the seconds of the round."""
    tokens_per_s_of_one: float | None
    """Median of the rates of single answers after their first token."""
    first_token_s: Percentiles | None
    total_s: Percentiles | None
    failure: str = ""
    """The first error."""

    def as_json(self) -> dict[str, object]:
        """Return it for `-o json`."""
        return asdict(self)


def measure(
    completions: Completions, *, clients: int, requests: int, max_tokens: int, prompt: str = "", seed: int = 0
) -> Round:
    """Send `requests` requests of each client, one after the other, and all clients at once.

    Each prompt begins with another number, so that no engine answers from the cache of an earlier prompt.
    """
    words = prompt or _WORDS

    def one_client(client: int) -> list[tuple[Measured, str]]:
        return [
            _one(completions, f"{seed}.{clients}.{client}.{number} {words}", max_tokens) for number in range(requests)
        ]

    began = time.monotonic()
    with ThreadPoolExecutor(clients) as pool:
        found = [each for results in pool.map(one_client, range(clients)) for each in results]
    seconds = time.monotonic() - began
    good = [measured for measured, failure in found if not failure]
    firsts = [each.first_token_s for each in good if each.first_token_s is not None]
    totals = [each.ended_at - each.began_at for each in good if each.ended_at is not None]
    rates = [each.tokens_per_s for each in good if each.tokens_per_s is not None]
    tokens = sum(each.tokens for each in good)
    return Round(
        clients=clients,
        requests=len(found),
        failed=len(found) - len(good),
        seconds=seconds,
        prompt_tokens=sum(each.prompt_tokens or 0 for each in good),
        tokens=tokens,
        tokens_per_s=tokens / seconds if seconds else 0.0,
        tokens_per_s_of_one=Percentiles.of(rates).p50 if rates else None,
        first_token_s=Percentiles.of(firsts) if firsts else None,
        total_s=Percentiles.of(totals) if totals else None,
        failure=next((failure for _, failure in found if failure), ""),
    )


def _one(completions: Completions, prompt: str, max_tokens: int) -> tuple[Measured, str]:
    measured = Measured()
    try:
        messages = [{"role": "user", "content": prompt}]
        for _ in completions.stream(messages, measured, max_tokens=max_tokens, temperature=0):
            pass
    except CompletionFailed as failed:
        return measured, str(failed)
    return measured, ""
