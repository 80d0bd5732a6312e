"""The status of an LLMInferenceServiceConfig: whether it is valid, and which services use it."""

from __future__ import annotations

import json
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest

from kubeapi.json_types import Json
from program.desired.keys import ServiceKey
from program.dialects.kserve import presets
from program.dialects.kserve.schema.status import ConfigStatus
from program.dialects.kserve.status.config import config_problem, config_status
from program.dialects.kserve.status.config_use import PEER_FINALIZER, referred_to
from tests.unit.dialects.kserve.combining import FOLDER, config, service

NOW = datetime(2026, 1, 1, tzinfo=UTC)
LATER = datetime(2026, 2, 1, tzinfo=UTC)
ONE = (ServiceKey("kserve", "team", "chat"),)


def main(*args: str) -> Json:
    return {"template": {"containers": [{"name": "main", "args": list(args)}]}}


def status(spec: Json, users: tuple[ServiceKey, ...] = (), before: Json | None = None, **metadata: Any) -> Json:
    cr = config("base", spec)
    cr["metadata"].update(generation=3, **metadata)
    if before is not None:
        cr["status"] = before
    return config_status(cr, users, config_problem(cr), now=NOW if before is None else LATER)


def conditions(found: Json) -> dict[str, tuple[str, str]]:
    return {each["type"]: (each["status"], each["reason"]) for each in found["conditions"]}


@pytest.mark.parametrize(
    ("spec", "reason", "words"),
    [
        ({}, "ConfigValid", ""),
        ({"replicas": 2}, "ConfigValid", ""),
        ({"worker": {"containers": []}}, "ConfigValid", ""),
        ({"kvCacheOffloading": {"secondary": [{"fileSystem": {"emptyDir": {}}}]}}, "ConfigValid", ""),
        (main("{{ .Spec.Parallelism.Data }}", "{{ .Spec.Prefill.Parallelism.Tensor }}"), "ConfigValid", ""),
        (main("{{ .Spec.Tracing.Sampler }}", "{{ .ObjectMeta.Labels.team }}"), "ConfigValid", ""),
        (main('{{ index .ObjectMeta.Annotations "acme.example/tier" }}'), "ConfigValid", ""),
        ({"baseRefs": [{"name": "other"}]}, "SpecInvalid", "spec.baseRefs"),
        ({"router": {"scheduler": {"replicas": 0}}}, "SpecInvalid", "spec.router.scheduler.replicas"),
        (main("{{ .Nope }}"), "InvalidRenderedConfig", "spec.template.containers[0].args[0]"),
        (main("{{ .Spec.Model.Name"), "InvalidRenderedConfig", "spec.template.containers[0].args[0]"),
        (main("{{ unknownFunc 1 }}"), "InvalidRenderedConfig", "unknownFunc"),
        ({"template": {"containers": [{"image": "x"}]}}, "CombineBaseError", "spec.template.containers[0]"),
    ],
)
def test_ready_says_whether_services_can_be_laid_over_it(spec: Json, reason: str, words: str) -> None:
    found = status(spec)
    fine = reason == "ConfigValid"
    told = conditions(found)
    assert told["Ready"] == ("True" if fine else "False", reason)
    assert told["Stalled"][0] == ("False" if fine else "True")
    assert told["Reconciling"][0] == "False"
    assert words in found["conditions"][0]["message"]


def test_all_presets_are_ready() -> None:
    problems = {name: config_problem({**(presets.preset(name) or {}), "metadata": {}}) for name in presets.names()}
    assert len(problems) > 10
    assert set(problems.values()) == {None}


def test_who_uses_it() -> None:
    unused = status({})
    assert conditions(unused)["ConfigInUse"] == ("False", "NotInUse")
    assert "referencedBy" not in unused

    many = tuple(ServiceKey("kserve", where, f"s{number:02}") for where in ("b", "a") for number in range(6))
    used = status({}, many)
    assert conditions(used)["ConfigInUse"] == ("True", "InUse")
    assert used["referencedBy"][0] == {"name": "s00", "namespace": "a"}
    assert len(used["referencedBy"]) == 12
    message = next(each["message"] for each in used["conditions"] if each["type"] == "ConfigInUse")
    assert "a/s00, a/s01" in message
    assert message.endswith("b/s03 and 2 more")


def test_a_deletion_is_blocked_where_the_peers_finalizer_does_it() -> None:
    deleted: Json = {"deletionTimestamp": "2026-01-01T00:00:00Z"}
    blocked = status({}, ONE, finalizers=[PEER_FINALIZER], **deleted)
    assert conditions(blocked)["ConfigInUse"] == ("True", "DeletionBlocked")
    others: tuple[Json, ...] = ({"finalizers": ["example.com/other"], **deleted}, {"finalizers": [PEER_FINALIZER]})
    for metadata in others:
        assert conditions(status({}, ONE, **metadata))["ConfigInUse"] == ("True", "InUse")


def test_the_same_dict_comes_back_until_something_changes() -> None:
    first = status({}, ONE)
    assert status({}, ONE, before=first) is first
    others = {**first, "conditions": [*reversed(first["conditions"])], "annotations": {"a": "b"}}
    assert status({}, ONE, before=others) is others
    unused = status({}, before=first)
    times = {each["type"]: each["lastTransitionTime"] for each in unused["conditions"]}
    assert (times["Ready"], times["ConfigInUse"]) == ("2026-01-01T00:00:00Z", "2026-02-01T00:00:00Z")


def test_a_status_of_the_peer_is_gone_on_from_even_without_times() -> None:
    theirs = {"conditions": [{"type": "Ready", "status": "True"}, {"type": "ConfigInUse", "status": "Unknown"}]}
    found = status({}, ONE, before=theirs)
    assert conditions(found)["ConfigInUse"] == ("True", "InUse")
    assert {each["lastTransitionTime"] for each in found["conditions"]} == {"2026-02-01T00:00:00Z"}


def test_only_fields_of_the_crd_are_written() -> None:
    for found in (status({}, ONE), status(main("{{ .Nope }}"))):
        read = ConfigStatus.model_validate(found)
        assert not read.model_extra
        assert not any(condition.model_extra for condition in read.conditions or ())


RECORDED = {
    (path.stem, name): told
    for path in sorted(Path(FOLDER).glob("0*.json"))
    for name, told in json.loads(path.read_text())["output"].get("status", {}).items()
    if name.startswith("LLMInferenceServiceConfig/")
}


@pytest.mark.parametrize(("case", "wanted"), RECORDED.items(), ids=str)
def test_recorded_statuses_are_said(case: tuple[str, str], wanted: Json) -> None:
    vector = json.loads((FOLDER / f"{case[0]}.json").read_text())
    name = case[1].partition("/")[2]
    cr = next(each for each in vector["input"] if each["metadata"]["name"] == name)
    services = [each for each in vector["input"] if each["kind"] == "LLMInferenceService"]
    users = [
        ServiceKey("kserve", vector["namespace"], each["metadata"]["name"])
        for each in services
        if name in referred_to(each)
    ]
    found = config_status(cr, users, config_problem(cr), now=NOW)
    assert found["referencedBy"] == wanted["referencedBy"]
    ours = {each["type"]: each for each in found["conditions"]}
    for condition in wanted["conditions"]:
        of_ours = ours[condition["type"]]
        same = {key: value for key, value in condition.items() if key != "message"}
        assert {key: of_ours.get(key) for key in same} == same


def test_what_a_service_is_made_of() -> None:
    applied = [
        {"name": "kserve-config-llm-template", "namespace": "kserve", "source": "Preset"},
        {"name": "dropped", "namespace": "team", "source": "UserRef"},
    ]
    spec = {"baseRefs": [{"name": "b"}, {"name": "a"}, {"name": "b"}, {}]}
    assert referred_to(service(spec, status={"appliedConfigs": applied})) == ("a", "b", "kserve-config-llm-template")
    assert referred_to(service()) == ()
    for junk in ({"baseRefs": "a"}, {"baseRefs": [1, None, {"name": 5}]}):
        assert referred_to(service(junk)) == ()
