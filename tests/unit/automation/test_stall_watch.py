"""Which readings count as a stall, and the watch of engines behind a real HTTP server."""

from __future__ import annotations

import time
from collections.abc import Iterator

import pytest

from automation.serving.completion_check import CompletionCheck
from automation.serving.engine_progress import Reading, read_metrics
from automation.serving.engine_start import EngineStart
from automation.serving.stall_watch import Progress, StallWatch, should_probe, update_progress
from program.runtimes.base import ProgressMetrics, small_completion
from tests.support.loop import eventually
from tests.support.pod_proxy import PodProxy, Say, token

pytestmark = pytest.mark.slow

METRICS = ProgressMetrics(generated_tokens="vllm:generation_tokens_total", running_requests="vllm:num_requests_running")
START = EngineStart("ns", "p", "u1", "c1", 8000, "vllm")
CHAT = small_completion("chat")


def progress(*readings: tuple[float, Reading]) -> Progress:
    found: Progress | None = None
    for now, reading in readings:
        found = update_progress(found, reading, now=now)
    assert found is not None
    return found


def stalled(*readings: tuple[float, Reading]) -> bool:
    return should_probe(progress(*readings), stall_s=120, now=readings[-1][0])


def test_requests_without_tokens_for_long_are_suspicious() -> None:
    assert stalled((0, Reading(1, 7)), (60, Reading(1, 7)), (120, Reading(2, 7)))
    assert not stalled((0, Reading(1, 7)), (60, Reading(1, 7)), (119, Reading(2, 7)))


def test_a_token_or_a_pause_is_a_sign_of_life() -> None:
    assert not stalled((0, Reading(1, 7)), (60, Reading(1, 8)), (170, Reading(1, 8)))
    assert not stalled((0, Reading(1, 7)), (60, Reading(0, 7)), (170, Reading(1, 7)))
    assert not stalled((0, Reading(1, 700)), (60, Reading(1, 3)), (170, Reading(1, 3))), "a counter that began anew"


def test_no_answer_is_no_stall_until_much_later() -> None:
    assert not stalled((0, Reading(1, 7)), (60, Reading()), (300, Reading()))
    assert stalled((0, Reading(1, 7)), (60, Reading()), (600, Reading()))
    assert not stalled((0, Reading(1, 7)), (60, Reading()), (590, Reading(1, 8)), (650, Reading()))


def test_samples_of_all_labels_add_up() -> None:
    text = (
        "# HELP vllm:num_requests_running x\n# TYPE vllm:num_requests_running gauge\n"
        'vllm:num_requests_running{engine="0",model_name="a b"} 2.0\n'
        'vllm:num_requests_running{engine="1"} 1.0 1700000000\n'
        'vllm:generation_tokens_total{engine="0"} 1.5e3\n'
        "vllm:generation_tokens_total_created 9\n"
    )
    assert read_metrics(text, METRICS) == Reading(3.0, 1500.0)


@pytest.mark.parametrize("text", ["", "vllm:num_requests_running 1\n", "vllm:num_requests_running NaN\n", "<html>"])
def test_what_does_not_say_both_says_nothing(text: str) -> None:
    assert read_metrics(text, METRICS) == Reading()


@pytest.fixture
def proxy() -> Iterator[PodProxy]:
    with PodProxy() as running:
        yield running


@pytest.fixture
def timeout_s() -> float:
    """Of a completion; shorter where an engine hangs."""
    return 30.0


@pytest.fixture
def watch(proxy: PodProxy, timeout_s: float) -> Iterator[StallWatch]:
    check = CompletionCheck(proxy.client, timeout_s=timeout_s)
    made = StallWatch(proxy.client, check.check, every_s=0.05, stall_s=0.3)
    yield made
    made.close()
    check.close()


def engine(*, running: int, hangs: bool, moves: bool = False) -> object:
    count = 0

    def answer(method: str, path: str, body: object) -> Say:
        nonlocal count
        if path == "/metrics":
            count += moves
            return Say(body=f"vllm:num_requests_running {running}\nvllm:generation_tokens_total {count}\n".encode())
        if method == "POST":
            return Say(after_s=1.0) if hangs else token()
        return Say(404)

    return answer


@pytest.mark.parametrize("timeout_s", [0.3])
def test_an_engine_that_hangs_is_reported_once_and_followed_no_more(proxy: PodProxy, watch: StallWatch) -> None:
    proxy.engines["p"] = engine(running=1, hangs=True)  # type: ignore[assignment]
    found: list[tuple[EngineStart, str]] = []
    watch.follow("svc", frozenset({START}), METRICS, CHAT, lambda start, why: found.append((start, why)))
    eventually(lambda: found, what="a stall", timeout_s=60)
    assert found[0][0] == START and "does not answer a completion" in found[0][1]
    assert watch.followed() == 0


@pytest.mark.parametrize(("running", "hangs", "moves"), [(1, False, False), (0, True, False), (1, True, True)])
def test_an_engine_that_answers_rests_or_computes_is_left_alone(
    proxy: PodProxy, watch: StallWatch, running: int, hangs: bool, moves: bool
) -> None:
    proxy.engines["p"] = engine(running=running, hangs=hangs, moves=moves)  # type: ignore[assignment]
    found: list[str] = []
    watch.follow("svc", frozenset({START}), METRICS, CHAT, lambda start, why: found.append(why))
    eventually(lambda: proxy.count("p", "/metrics") > 12, what="some looks", timeout_s=60)
    assert not found and watch.followed() == 1
    assert bool(proxy.count("p", CHAT.path)) == (running > 0 and not moves)


def test_an_engine_that_loads_its_model_is_not_called_stalled(proxy: PodProxy, watch: StallWatch) -> None:
    loading = {"error": {"message": "Loading model", "type": "unavailable_error", "code": 503}}
    proxy.engines["p"] = lambda *_: Say(503, loading)
    found: list[str] = []
    watch.follow("svc", frozenset({START}), METRICS, CHAT, lambda start, why: found.append(why))
    eventually(lambda: proxy.count("p", CHAT.path) >= 2, what="two completions asked for", timeout_s=60)
    assert not found and watch.followed() == 1


def test_what_is_followed_no_more_is_asked_no_more(proxy: PodProxy, watch: StallWatch) -> None:
    proxy.engines["p"] = engine(running=0, hangs=False)  # type: ignore[assignment]
    watch.follow("svc", frozenset({START}), METRICS, CHAT, lambda *_: None)
    eventually(lambda: proxy.count("p"), what="a look", timeout_s=60)
    watch.follow("svc", frozenset(), METRICS, CHAT, lambda *_: None)
    assert watch.followed() == 0
    eventually(lambda: _still(proxy), what="no further look", timeout_s=60)


def _still(proxy: PodProxy) -> bool:
    before = proxy.count("p")
    time.sleep(0.3)
    return proxy.count("p") == before
