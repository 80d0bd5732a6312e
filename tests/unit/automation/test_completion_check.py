"""The completion check with a real HTTP server in place of the pod proxy."""

from __future__ import annotations

import math
import threading
from collections.abc import Iterator

import pytest

from automation.serving.completion_check import CLOSED_AFTER, CompletionCheck, Proof
from automation.serving.engine_start import EngineStart
from program.runtimes.base import CompletionRequest, ProgressMetrics, small_completion
from tests.support.loop import eventually
from tests.support.pod_proxy import PodProxy, Say, api_status, token

CHAT = small_completion("chat")
START = EngineStart("ns", "p", "u1", "c1", 8080, "llama-server")


class Clock:
    def __init__(self) -> None:
        self.now = 1000.0

    def __call__(self) -> float:
        return self.now


@pytest.fixture
def proxy() -> Iterator[PodProxy]:
    with PodProxy() as running:
        yield running


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture
def check(proxy: PodProxy, clock: Clock) -> Iterator[CompletionCheck]:
    made = CompletionCheck(proxy.client, timeout_s=30, clock=clock, dice=lambda: 0.0)
    yield made
    made.close()


@pytest.fixture
def hasty(proxy: PodProxy) -> CompletionCheck:
    """A check for engines that do not answer."""
    return CompletionCheck(proxy.client, timeout_s=0.4)


def prove(proxy: PodProxy, check: CompletionCheck, say: Say, request: CompletionRequest = CHAT) -> Proof:
    proxy.engines["p"] = lambda *_: say
    return check.check(START, request)


def settled(check: CompletionCheck, start: EngineStart = START) -> Proof:
    """Repeat the check until no response is awaited; return its result."""

    def look() -> Proof | None:
        found = check.latest(start, CHAT, changed=lambda: None)
        return found if check.idle() else None

    found = eventually(look, what="an answer", timeout_s=60)
    assert found is not None
    return found


@pytest.mark.parametrize(
    ("say", "mode"),
    [
        (token("Hi"), "chat"),
        (token("", tokens=1), "chat"),
        (Say(body={"choices": [{"text": "x"}]}), "chat"),
        (Say(body={"data": [{"embedding": [0.1, -0.2, 0]}]}), "embedding"),
        (Say(body={"data": [{"embedding": [[0.1, -0.2]]}]}), "embedding"),
        (Say(body={"results": [{"index": 0, "relevance_score": -3.5}]}), "rerank"),
    ],
)
def test_an_answer_with_content_is_proof(proxy: PodProxy, check: CompletionCheck, say: Say, mode: str) -> None:
    request = small_completion(mode)  # type: ignore[arg-type]
    assert prove(proxy, check, say, request).state == "proved"


@pytest.mark.parametrize(
    "say",
    [
        Say(500, {"error": {"message": "failed to allocate"}}),
        Say(503, {"error": {"message": "out of memory"}}),
        Say(503, b"Loading model"),
        Say(200, {"choices": []}),
        token("", tokens=0),
        Say(200, {"data": [{"embedding": [None, None]}]}),
        Say(200, {"data": [{"embedding": []}]}),
        Say(200, b"<html>hello</html>"),
        Say(200, b"[]"),
    ],
)
def test_an_answer_without_content_is_a_failure_and_says_what_came(
    proxy: PodProxy, check: CompletionCheck, say: Say
) -> None:
    proof = prove(proxy, check, say)
    assert proof.state == "failed" and not proof.serves
    assert f"POST {CHAT.path}: {say.status}" in proof.message


def test_an_engine_that_loads_its_model_does_not_serve_yet_and_is_asked_every_few_seconds(
    proxy: PodProxy, check: CompletionCheck, clock: Clock
) -> None:
    loading = {"error": {"message": "Loading model", "type": "unavailable_error", "code": 503}}
    proxy.engines["p"] = lambda *_: Say(503, loading)
    for tries in range(1, 8):
        proof = settled(check)
        assert (proof.state, proof.serves, proof.tries) == ("loading", False, tries)
        assert 0 < check.due_in_s(START) <= 15
        clock.now += 15
    proxy.engines["p"] = lambda *_: token()
    assert settled(check).state == "proved"


def test_an_engine_that_takes_the_request_and_says_nothing_has_failed(proxy: PodProxy, hasty: CompletionCheck) -> None:
    proxy.engines["p"] = lambda method, path, body: Say(after_s=1.5) if method == "POST" else Say(404)
    proof = hasty.check(START, CHAT)
    assert (proof.state, proof.message) == ("failed", "POST /v1/chat/completions: no answer in 0.4 s")


def test_a_request_that_waits_behind_others_is_no_failure(
    proxy: PodProxy, hasty: CompletionCheck, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("automation.serving.completion_check.PROGRESS_S", 0.01)
    decoded = iter(range(100))
    metrics = ProgressMetrics(generated_tokens="tokens_total", running_requests="running")

    def engine(method: str, path: str, body: bytes) -> Say:
        if method == "POST":
            return Say(after_s=1.5)
        return Say(200, f"tokens_total {next(decoded)}\nrunning 1\n".encode()) if path == "/metrics" else Say(404)

    proxy.engines["p"] = engine
    proof = hasty.check(START, CHAT, metrics)
    assert proof.state == "unknown" and proof.serves and not proof.final
    assert "generates tokens for other requests" in proof.message


def test_a_request_that_waits_while_no_token_is_made_is_a_failure(
    proxy: PodProxy, hasty: CompletionCheck, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("automation.serving.completion_check.PROGRESS_S", 0.01)
    metrics = ProgressMetrics(generated_tokens="tokens_total", running_requests="running")

    def engine(method: str, path: str, body: bytes) -> Say:
        return Say(after_s=1.5) if method == "POST" else Say(200, b"tokens_total 7\nrunning 1\n")

    proxy.engines["p"] = engine
    assert hasty.check(START, CHAT, metrics).state == "failed"


def test_when_no_request_gets_through_nothing_is_said_of_the_engine(
    proxy: PodProxy, hasty: CompletionCheck, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("automation.serving.completion_check.EVIDENCE_TIMEOUT_S", 0.2)
    proxy.engines["p"] = lambda *_: Say(after_s=1.0)
    assert hasty.check(START, CHAT).state == "unknown"


@pytest.mark.parametrize(
    ("say", "final"),
    [
        (Say(401, {"error": "invalid api key"}), True),
        (Say(403, b"no"), True),
        (Say(404, b"no such path"), True),
        (Say(302, headers={"Location": "/login"}), True),
        (Say(501, {"error": "not supported"}), True),
        (Say(429, b"busy"), False),
        (api_status(403, "Forbidden", "cannot create pods/proxy"), True),
        (api_status(503, "ServiceUnavailable", "error trying to reach service: EOF"), False),
        (api_status(404, "NotFound"), False),
    ],
)
def test_what_cannot_be_asked_is_unknown_and_serves(
    proxy: PodProxy, check: CompletionCheck, say: Say, final: bool
) -> None:
    proof = prove(proxy, check, say)
    assert (proof.state, proof.final, proof.serves) == ("unknown", final, True)


def test_an_engine_without_a_request_is_never_asked(proxy: PodProxy, check: CompletionCheck) -> None:
    proof = check.latest(START, None, changed=lambda: None)
    assert proof is not None and (proof.state, proof.final) == ("unknown", True)
    assert not proxy.asked


def test_a_start_is_asked_once_and_a_restarted_container_again(proxy: PodProxy, check: CompletionCheck) -> None:
    proxy.engines["p"] = lambda *_: token()
    for _ in range(5):
        assert settled(check).state == "proved"
    assert proxy.count("p") == 1
    assert settled(check, START._replace(run="c2")).state == "proved"
    assert proxy.count("p") == 2


def test_a_failure_is_asked_again_with_back_off_until_it_is_none(
    proxy: PodProxy, check: CompletionCheck, clock: Clock
) -> None:
    proxy.engines["p"] = lambda *_: Say(500)
    waits = []
    for tries in (1, 2, 3):
        proof = settled(check)
        assert (proof.state, proof.tries) == ("failed", tries)
        assert proxy.count("p") == tries
        waits.append(check.due_in_s(START))
        clock.now += waits[-1]
    assert waits == [5.0, 10.0, 20.0]
    proxy.engines["p"] = lambda *_: token()
    check.latest(START, CHAT, changed=lambda: None)
    assert settled(check) == Proof("proved")
    assert check.due_in_s(START) == math.inf


def test_an_answer_calls_back_and_asking_never_waits(proxy: PodProxy, check: CompletionCheck) -> None:
    answering = threading.Event()

    def engine(method: str, path: str, body: object) -> Say:
        answering.wait(5)
        return token()

    proxy.engines["p"] = engine
    called = threading.Event()
    assert check.latest(START, CHAT, changed=called.set) is None
    assert not called.is_set() and check.due_in_s(START) == math.inf
    answering.set()
    assert called.wait(30)
    assert check.latest(START, CHAT, changed=called.set) == Proof("proved")


def test_where_no_request_reaches_any_replica_new_ones_do_not_wait_to_learn_it(
    proxy: PodProxy, check: CompletionCheck
) -> None:
    hanging = threading.Event()

    def engine(method: str, path: str, body: object) -> Say:
        hanging.wait(5)
        return token()

    proxy.engines["p"] = lambda *_: api_status(503, "ServiceUnavailable", "error trying to reach service")
    for number in range(CLOSED_AFTER):
        assert check.latest(START._replace(uid=f"old-{number}", pod="p"), CHAT, changed=lambda: None) is None
    eventually(check.idle, what="refusals", timeout_s=60)
    proxy.engines["p"] = engine
    found = check.latest(START, CHAT, changed=lambda: None)
    assert found is not None and (found.state, found.final) == ("unknown", False)
    hanging.set()
    assert settled(check) == Proof("proved"), "the answer itself comes all the same, and opens the way"
    assert check.latest(START._replace(uid="new"), CHAT, changed=lambda: None) is None
