"""The loop's policies: evaluated once for each version of a service, and read again when files change."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from prometheus_client import CollectorRegistry

from automation.approval.policy_checker import RETRY_S, PolicyChecker
from components.policies import reading
from components.policies.policy import PolicyUnreadable
from components.render import RenderOptions, render
from program.desired.facts import Problem, ServiceFacts
from program.desired.keys import ServiceKey
from program.desired.service import DesiredService
from program.dialects.llmkube.status.service import service_status
from tests.support.builders import service
from tests.support.statuses import NOW
from tests.unit.policies.folders import document, folder

KEY = ServiceKey("llmkube", "ns", "svc")
FORBIDDEN = document("where", namespaces={"allowed": ["elsewhere"]})


class Loop:
    """A PolicyChecker, and the passes that it requests from the loop."""

    def __init__(self, path: Path | None) -> None:
        self.now = 0.0
        self.requeued: list[float] = []
        self.changes = 0
        self.checker = PolicyChecker(
            path, requeue=lambda _key, delay_s: self.requeued.append(delay_s), changed=self._changed, clock=self._clock
        )

    def _changed(self) -> None:
        self.changes += 1

    def _clock(self) -> float:
        return self.now

    def verdict(self, desired: DesiredService | None = None, *, generation: int = 1, **labels: str) -> Any:
        desired = desired or service()
        cr = {"metadata": {"name": "svc", "namespace": "ns", "generation": generation}, "spec": {}}
        rendered = render(desired, RenderOptions())
        return self.checker.verdict(KEY, cr, desired, rendered, namespace_labels=labels)


@pytest.fixture
def loop(tmp_path: Path) -> Iterator[Loop]:
    made = Loop(folder(tmp_path / "policies", p_yaml=FORBIDDEN))
    yield made
    made.checker.close()


def test_without_a_folder_everything_is_allowed() -> None:
    assert Loop(None).verdict() == (None, ())


def test_a_folder_that_makes_no_sense_at_the_start_is_an_error(tmp_path: Path) -> None:
    with pytest.raises(PolicyUnreadable, match=r"p\.yaml: spec\.nothing"):
        Loop(folder(tmp_path, p_yaml=document(nothing=1)))


def test_mandatory_and_advisory(tmp_path: Path) -> None:
    advisory = document("advice", enforcement="advisory", namespaces={"allowed": ["elsewhere"]})
    loop = Loop(folder(tmp_path, a_yaml=FORBIDDEN, b_yaml=advisory))
    problem, advice = loop.verdict()
    assert (problem.reason, problem.terminal) == ("PolicyViolated", True)
    assert problem.message.startswith("policy `where`: metadata.namespace is ns: ")
    assert [each.reason for each in advice] == ["PolicyAdvice"]


def test_a_service_that_stays_is_asked_about_once(loop: Loop, monkeypatch: pytest.MonkeyPatch) -> None:
    asked = []
    check = loop.checker.in_force.check
    monkeypatch.setattr(loop.checker.in_force, "check", lambda *a, **k: asked.append(1) or check(*a, **k))
    for _ in range(3):
        assert loop.verdict().problem is not None
    assert len(asked) == 1
    loop.verdict(generation=2)
    loop.verdict(generation=2, tier="prod")
    loop.verdict(service(replicas=2), generation=2, tier="prod")
    assert len(asked) == 4
    loop.checker.drop_service(KEY)
    loop.verdict(service(replicas=2), generation=2, tier="prod")
    assert len(asked) == 5


def test_a_verdict_of_replaced_policies_is_not_kept(
    loop: Loop, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    before = loop.checker.in_force
    check = before.check

    def replaced_meanwhile(*arguments: Any, **options: Any) -> Any:
        folder(tmp_path / "policies", p_yaml=document("where", namespaces={"allowed": ["ns"]}))
        loop.checker.reload_if_changed()
        return check(*arguments, **options)

    monkeypatch.setattr(before, "check", replaced_meanwhile)
    assert loop.verdict().problem is not None, "the policies at the beginning of the pass"
    assert loop.verdict().problem is None, "those in force now"


def test_a_folder_that_could_not_be_read_is_tried_again(
    loop: Loop, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    load = reading.load_policies

    def slow(_folder: Path) -> Any:
        raise PolicyUnreadable("the rules of the folder cannot be loaded: it took longer than 20 s")

    monkeypatch.setattr(reading, "load_policies", slow)
    folder(tmp_path / "policies", p_yaml=document("where", namespaces={"allowed": ["ns"]}))
    loop.checker.reload_if_changed()
    assert loop.verdict().problem is not None
    monkeypatch.setattr(reading, "load_policies", load)
    loop.checker.reload_if_changed()
    assert loop.changes == 0, "not at each look"
    loop.now += RETRY_S + 1
    loop.checker.reload_if_changed()
    assert loop.verdict().problem is None


def test_a_folder_is_read_again_when_it_changes(loop: Loop, tmp_path: Path) -> None:
    path = tmp_path / "policies"
    loop.checker.reload_if_changed()
    assert loop.changes == 0
    folder(path, p_yaml=document("where", namespaces={"allowed": ["ns"]}))
    loop.checker.reload_if_changed()
    assert loop.changes == 1
    assert loop.verdict().problem is None
    folder(path, q_yaml=FORBIDDEN.replace("where", "new"))
    loop.checker.reload_if_changed()
    assert loop.changes == 2
    assert loop.verdict().problem is not None
    (path / "q.yaml").unlink()
    loop.checker.reload_if_changed()
    assert loop.verdict().problem is None


def test_a_folder_that_breaks_leaves_the_last_good_policies(loop: Loop, tmp_path: Path) -> None:
    registry = CollectorRegistry()
    unregister = loop.checker.register(registry)
    path = tmp_path / "policies"
    for broken in ("kind: [", document(nothing=1)):
        folder(path, p_yaml=broken)
        loop.checker.reload_if_changed()
        assert registry.get_sample_value("herdsman_policies_readable") == 0
        assert loop.verdict().problem is not None
    assert loop.changes == 0
    folder(path, p_yaml=FORBIDDEN)
    loop.checker.reload_if_changed()
    assert registry.get_sample_value("herdsman_policies_readable") == 1
    path.rename(tmp_path / "gone")
    loop.checker.reload_if_changed()
    assert registry.get_sample_value("herdsman_policies_readable") == 0
    assert loop.verdict().problem is not None
    unregister()


def test_a_rule_that_could_not_be_evaluated_is_asked_again(tmp_path: Path) -> None:
    text = "from components.policies import rule\nasked = []\n@rule('r')\ndef r(**_):\n"
    text += "    asked.append(1)\n    assert len(asked) > 1, 'not ready'\n"
    loop = Loop(folder(tmp_path, r_py=text))
    assert "not ready" in loop.verdict().problem.message
    assert loop.requeued == [RETRY_S + 1]
    assert loop.verdict().problem is not None
    loop.now = RETRY_S + 1
    assert loop.verdict() == (None, ())
    loop.checker.close()


def test_what_serves_goes_on_though_a_policy_forbids_the_change() -> None:
    cr = {"metadata": {"name": "svc", "namespace": "ns", "generation": 2}, "spec": {}}
    problem = Problem(reason="PolicyViolated", message="policy `p`: no", terminal=True)
    facts = ServiceFacts(desired_replicas=1, replicas=1, ready_replicas=1, model_ready=True, problem=problem)
    status = service_status(cr, service(), facts, now=NOW)
    by_type = {c["type"]: c for c in status["conditions"]}
    assert status["phase"] == "Ready"
    assert (by_type["Stalled"]["status"], by_type["Stalled"]["reason"]) == ("True", "PolicyViolated")
    assert by_type["PolicyCompliant"]["status"] == "False"
    assert by_type["Available"]["status"] == "True"
    nothing = facts.model_copy(update={"ready_replicas": 0, "replicas": 0})
    assert service_status(cr, service(), nothing, now=NOW)["phase"] == "Failed"
