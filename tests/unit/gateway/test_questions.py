"""Which engines are asked for their models, and when again."""

from __future__ import annotations

from gateway.engines.backends import Route
from gateway.engines.questions import AGAIN_S, EngineQuestions
from gateway.names import Model, ServiceName
from tests.support.adapter_engines import AdapterEngine, EngineServer
from tests.support.loop import eventually

SERVICE = Model(ServiceName("prod", "chat"))


def test_an_engine_that_lost_its_endpoints_after_a_failure_is_not_due() -> None:
    now = 100.0
    questions = EngineQuestions(lambda: None, clock=lambda: now)
    questions.ask([Route(SERVICE, (("127.0.0.1", 1),))])

    def failed() -> bool:
        questions.known()
        return questions.due_in_s() is not None

    eventually(failed, what="the answer")
    assert questions.due_in_s() == AGAIN_S
    questions.ask([Route(SERVICE)])
    assert questions.due_in_s() == AGAIN_S
    now += AGAIN_S
    assert questions.due_in_s() == 0
    questions.ask([Route(SERVICE)])
    assert questions.due_in_s() is None
    questions.close()


def test_an_engine_is_asked_again_after_its_adapters_changed() -> None:
    engine = AdapterEngine()
    with EngineServer(engine) as server:
        questions = EngineQuestions(lambda: None)
        targets = (("127.0.0.1", server.port),)

        def adapters(*state: str) -> tuple[str, ...]:
            questions.ask([Route(SERVICE, targets, engine_state=state)])
            found = questions.known().get(SERVICE.service)
            return found.adapters if found is not None else ("unknown",)

        eventually(lambda: adapters() == (), what="the first answer")
        engine.adapters["sql"] = "/a/sql"
        for _ in range(3):
            assert adapters() == (), "the engine is asked once"
        eventually(lambda: adapters("sql p1") == ("sql",), what="the second answer")
        assert engine.asked == [("GET", "/v1/models")] * 2
        questions.close()
