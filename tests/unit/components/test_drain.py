"""The default drain of pods, the settings of a service that replace it, and the drain in hashes."""

from __future__ import annotations

from typing import Any

import pytest

from components.drain import drain_script
from components.drained_pods import HUNG_S, as_in_hashes
from components.render import render
from components.rendered import fingerprint_of
from components.scripts import script_without_comments
from program.desired.engines import (
    EngineSettings,
    Generic,
    LlamaCpp,
    LlamaCppRouter,
    Ollama,
    PersonaPlex,
    Sglang,
    TensorRtLlm,
    Tgi,
    Vllm,
)
from program.desired.service import RolloutPolicy, Sleep
from tests.support.builders import service
from tests.unit.components.views import OPTIONS, container, deployment_spec, pod, template

V1 = script_without_comments("drain.v1.sh")


def command(engine: EngineSettings, **fields: Any) -> list[str]:
    found = container(service(engine=engine, image="x", **fields))["lifecycle"]["preStop"]["exec"]["command"]
    return [str(each) for each in found]


@pytest.mark.parametrize(
    ("engine", "question"),
    [
        (LlamaCpp(), ("http://127.0.0.1:8080/slots", "8080", "slots")),
        (LlamaCppRouter(), ("http://127.0.0.1:8080/slots", "8080", "slots")),
        (Vllm(), ("http://127.0.0.1:8000/metrics", "8000", "vllm:num_requests_running")),
        (Sglang(), ("http://127.0.0.1:30000/metrics", "30000", "sglang:num_running_reqs")),
        (Tgi(), ("http://127.0.0.1:80/metrics", "80", "tgi_batch_current_size")),
        (TensorRtLlm(), ("http://127.0.0.1:8000", "8000", "")),
        (Ollama(), ("http://127.0.0.1:11434", "11434", "")),
    ],
    ids=lambda value: value.runtime if hasattr(value, "runtime") else "",
)
def test_an_engine_that_would_drop_requests_drains_by_default(
    engine: EngineSettings, question: tuple[str, str, str]
) -> None:
    url, port, what = question
    assert command(engine) == ["sh", "-c", drain_script(), "drain-by-default", url, "300", port, what]
    desired = service(engine=engine, image="x")
    assert pod(desired)["terminationGracePeriodSeconds"] == 330
    # The requests of an engine that hangs never end. Then its probe ends the engine soon.
    assert container(desired)["livenessProbe"]["terminationGracePeriodSeconds"] == HUNG_S
    assert container(desired)["startupProbe"]["terminationGracePeriodSeconds"] == HUNG_S
    assert "terminationGracePeriodSeconds" not in container(desired)["readinessProbe"]


@pytest.mark.parametrize("engine", [Generic(), PersonaPlex()], ids=["generic", "personaplex"])
def test_an_image_of_which_nothing_is_known_stays_as_it_is(engine: EngineSettings) -> None:
    desired = service(engine=engine, image="x")
    assert "lifecycle" not in container(desired)
    assert "terminationGracePeriodSeconds" not in pod(desired)
    asked = service(engine=engine, image="x", drain_s=40.0)
    assert container(asked)["lifecycle"] == {"preStop": {"sleep": {"seconds": 15}}}
    assert pod(asked)["terminationGracePeriodSeconds"] == 70


def test_a_service_says_how_long_its_requests_take_and_that_none_is_waited_for() -> None:
    assert command(LlamaCpp(), drain_s=89.5)[3:6] == ["drain", "http://127.0.0.1:8080/slots", "90"]
    assert pod(service(drain_s=90.0))["terminationGracePeriodSeconds"] == 120
    for off in (service(drain_s=0.0), service(drain_s=0.0, rollout=RolloutPolicy(wait_for_idle=True))):
        assert "lifecycle" not in container(off)
        assert "terminationGracePeriodSeconds" not in pod(off)
        assert "terminationGracePeriodSeconds" not in container(off)["livenessProbe"]


def test_a_probe_of_the_users_keeps_its_own_grace_period() -> None:
    probe = {"httpGet": {"path": "/", "port": 1}, "terminationGracePeriodSeconds": 3}
    desired = service()
    desired = desired.model_copy(update={"pod": desired.pod.model_copy(update={"liveness_probe": probe})})
    assert container(desired)["livenessProbe"] == probe


def test_hashes_do_not_count_the_default_drain() -> None:
    spec = deployment_spec(service())
    before = as_in_hashes(spec["template"])
    assert isinstance(before, dict)
    (engine,) = before["spec"]["containers"]
    assert "lifecycle" not in engine and "terminationGracePeriodSeconds" not in before["spec"]
    assert engine["livenessProbe"].keys() == {"httpGet", "periodSeconds", "timeoutSeconds", "failureThreshold"}
    assert fingerprint_of(spec["template"]) == fingerprint_of(before)


def test_hashes_count_a_drain_that_was_asked_for_as_it_was_then() -> None:
    waits, sleeps = {"rollout": RolloutPolicy(wait_for_idle=True)}, {"sleep": Sleep(idle_timeout_s=9.0)}
    for asked in (waits, sleeps):
        before = as_in_hashes(template(service(**asked)))
        assert isinstance(before, dict)
        then = ["sh", "-c", V1, "drain", "http://127.0.0.1:8080/slots", "300"]
        assert before["spec"]["containers"][0]["lifecycle"] == {"preStop": {"exec": {"command": then}}}
        assert before["spec"]["terminationGracePeriodSeconds"] == 330
    before = as_in_hashes(template(service(engine=Vllm(), image="x", **waits)))
    assert isinstance(before, dict)
    assert before["spec"]["containers"][0]["lifecycle"] == {"preStop": {"sleep": {"seconds": 15}}}


def test_what_a_service_says_of_its_drain_counts() -> None:
    hashes = {
        render(desired, OPTIONS).fingerprint
        for desired in (service(), service(drain_s=0.0), service(drain_s=60.0), service(drain_s=61.0))
    }
    assert len(hashes) == 4
