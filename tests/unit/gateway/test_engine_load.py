"""The load of engines, from their metrics."""

from __future__ import annotations

import socket
import threading
from collections.abc import Callable

import pytest

from gateway.engines.backends import Route
from gateway.engines.load import EngineLoad, read_load
from gateway.names import Model, ServiceName
from tests.support.gateways import OK, Answer, Engine, Front, says
from tests.support.loop import eventually

LLAMA = b"""# HELP llamacpp:requests_processing Number of requests processing.
# TYPE llamacpp:requests_processing gauge
llamacpp:requests_processing 2
llamacpp:requests_deferred 3
"""
VLLM = b"""vllm:num_requests_running{engine="0",model_name="a}\\"b"} 4.0
vllm:num_requests_running{engine="1",model_name="a"} 1.0
vllm:num_requests_waiting{engine="0"} 0.0
vllm:num_requests_waiting_by_reason{reason="x"} 9.0
vllm:kv_cache_usage_perc{engine="0"} 0.25
vllm:kv_cache_usage_perc{engine="1"} 7.5e-1
"""
TRITON = b"""nv_trt_llm_request_metrics{model="m",request_type="scheduled"} 5
nv_trt_llm_request_metrics{model="m",request_type="waiting"} 6
nv_trt_llm_request_metrics{model="m",request_type="max"} 64
nv_trt_llm_kv_cache_block_metrics{kv_cache_block_type="fraction"} 0.5
nv_trt_llm_kv_cache_block_metrics{kv_cache_block_type="used"} 100
"""


@pytest.mark.parametrize(
    ("text", "load"),
    [
        (LLAMA, EngineLoad(2, 3)),
        (VLLM, EngineLoad(5, 0, 0.75)),
        (b"sglang:num_running_reqs 1\nsglang:num_queue_reqs 2\nsglang:token_usage 0.1\n", EngineLoad(1, 2, 0.1)),
        (b"tgi_batch_current_size 1\ntgi_queue_size 2\n", EngineLoad(1, 2)),
        (b"trtllm_num_requests_running 1\r\ntrtllm_num_requests_waiting 0\r\n", EngineLoad(1, 0)),
        (TRITON, EngineLoad(5, 6, 0.5)),
        (b"vllm:num_requests_running 1\n", None),
        (b"vllm:num_requests_running NaN\nvllm:num_requests_waiting -1\n", None),
        (b"# vllm:num_requests_running 1\n", None),
        (b"", None),
        (b"\xff{{{\n" * 100, None),
    ],
)
def test_the_metrics_of_each_engine_are_understood(text: bytes, load: EngineLoad | None) -> None:
    assert read_load(text) == load


def with_metrics(metrics: Answer) -> Answer:
    def answer(connection: socket.socket, head: bytes, body: bytes) -> None:
        (metrics if head.startswith(b"GET ") else OK)(connection, head, body)

    return answer


def chunked(connection: socket.socket, _head: bytes, _body: bytes) -> None:
    head = b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n"
    connection.sendall(head + b"%x\r\n%s\r\n0\r\n\r\n" % (len(VLLM), VLLM))


Make = Callable[[Answer], Engine]


def serve(front: Front, *engines: Engine) -> None:
    targets = tuple(each.target for each in engines)
    front.serve_routes(Route(Model(ServiceName("prod", "chat")), targets, prefix_hash=False))
    assert front.ask({"model": "chat"})[0] == 200


def loads(front: Front) -> dict[int, EngineLoad | None]:
    backend = front.server.backends.of(ServiceName("prod", "chat"))
    assert backend is not None
    return {each.target[1]: each.measured for each in backend.balancer.endpoints}


def test_requests_go_to_the_replica_whose_engine_has_fewer_of_others(front: Front, make_engine: Make) -> None:
    busy, idle = make_engine(with_metrics(chunked)), make_engine(with_metrics(says("200 OK", LLAMA)))
    serve(front, busy, idle)
    eventually(
        lambda: loads(front) == {busy.port: EngineLoad(5, 0, 0.75), idle.port: EngineLoad(2, 3)}, what="the metrics"
    )
    # The waiting requests of the second engine count twice: 8 against 5.
    before = len(posts(busy))
    for _ in range(5):
        front.ask({"model": "chat"})
    assert len(posts(busy)) == before + 5


def posts(engine: Engine) -> list[bytes]:
    return [head for head, _ in engine.seen if head.startswith(b"POST")]


def test_engines_without_metrics_serve_as_before(front: Front, make_engine: Make) -> None:
    without = make_engine(with_metrics(says("404 Not Found", b"{}")))
    silent = make_engine(with_metrics(lambda *_: threading.Event().wait(30)))  # type: ignore[arg-type]
    serve(front, without, silent)
    eventually(lambda: any(b"/prometheus/metrics" in head for head, _ in without.seen), what="both paths")
    for _ in range(8):
        assert front.ask({"model": "chat"})[0] == 200
    assert set(loads(front).values()) == {None}
    assert sum(head.startswith(b"GET") for head, _ in without.seen) == 2, "it is not asked again soon"


def test_a_model_without_requests_is_not_asked(front: Front, make_engine: Make) -> None:
    first, second = make_engine(with_metrics(chunked)), make_engine(with_metrics(chunked))
    targets = (first.target, second.target)
    front.serve_routes(Route(Model(ServiceName("prod", "chat")), targets))
    other = make_engine(with_metrics(chunked))
    front.serve_routes(
        Route(Model(ServiceName("prod", "chat")), targets),
        Route(Model(ServiceName("prod", "used")), (other.target, make_engine(with_metrics(chunked)).target)),
    )
    front.ask({"model": "used"})
    eventually(lambda: any(head.startswith(b"GET") for head, _ in other.seen), what="the metrics of the used model")
    assert not [*first.seen, *second.seen], "a request could wake a model that sleeps"
