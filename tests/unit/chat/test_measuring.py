"""Measurements with several clients, of a real HTTP server."""

from __future__ import annotations

import pytest

from automation.chat.completions import Completions
from automation.chat.measuring import Percentiles, measure
from automation.places.place import Reached
from tests.support.completion_server import completion_server


def test_percentiles_are_by_the_nearest_rank() -> None:
    assert Percentiles.of([4.0, 1.0, 3.0, 2.0]) == Percentiles(2.0, 4.0, 4.0)
    assert Percentiles.of([float(each) for each in range(1, 101)]) == Percentiles(50.0, 95.0, 99.0)
    with pytest.raises(ValueError):
        Percentiles.of([])


def test_all_clients_send_all_their_requests_with_prompts_of_their_own() -> None:
    with completion_server() as server:
        reached = Reached(base_url=server.base_url, model="tiny", how="a test")
        with Completions(reached, connections=3) as completions:
            found = measure(completions, clients=3, requests=2, max_tokens=9)
        prompts = {each["messages"][-1]["content"] for each in server.requests}
        assert len(prompts) == 6
        assert (found.requests, found.failed, found.tokens, found.prompt_tokens) == (6, 0, 18, 42)
        assert found.first_token_s and found.total_s and found.total_s.p50 >= found.first_token_s.p50
        server.fault = "refused"
        with Completions(reached) as completions:
            found = measure(completions, clients=1, requests=2, max_tokens=9)
        assert (found.failed, found.first_token_s, found.tokens_per_s) == (2, None, 0.0)
        assert "context size exceeded" in found.failure
