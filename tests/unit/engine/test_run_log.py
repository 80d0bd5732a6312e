"""Reading the CLI's event log."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from automation.engine.run_log import parse_events, read_event_log

URN = "urn:pulumi:ns::herdsman::herdsman:index:InferenceDeployment$kubernetes:apps/v1:Deployment::llmkube/a/deployment"
STACK = "urn:pulumi:ns::herdsman::pulumi:pulumi:Stack::herdsman-ns"


def line(event: str, body: dict[str, Any]) -> str:
    return json.dumps({"sequence": 1, "timestamp": 2, event: body}, separators=(",", ":")) + "\n"


def step(event: str, op: str, urn: str = URN, **more: Any) -> str:
    return line(event, {"metadata": {"op": op, "urn": urn, "type": "x", **more}})


def error(message: str, urn: str | None = None) -> str:
    named = {"urn": urn} if urn else {}
    return line(
        "diagnosticEvent", {**named, "prefix": "error: ", "message": message, "color": "never", "severity": "error"}
    )


def test_a_step_that_was_done_is_a_change_with_its_paths_and_the_name_of_the_object() -> None:
    log = parse_events(
        [
            step(
                "resOutputsEvent",
                "update",
                detailedDiff={"spec.replicas": {"diffKind": "update"}, "metadata.labels.a": {"diffKind": "add"}},
                new={"inputs": {"metadata": {"name": "a"}}},
            )
        ]
    )
    change = log.done[URN]
    assert (change.op, change.kind, change.name) == ("update", "Deployment", "a")
    assert change.paths == ("metadata.labels.a", "spec.replicas")


def test_steps_of_a_replacement_count_as_one() -> None:
    for steps in (
        ("delete-replaced", "replace", "create-replacement"),
        ("create-replacement", "replace", "delete-replaced"),
        ("delete", "create"),
    ):
        log = parse_events([step("resOutputsEvent", op) for op in steps])
        assert log.done[URN].op == "replace", steps


def test_what_a_refresh_found_gone_and_the_run_made_again_is_no_delete() -> None:
    log = parse_events([step("resOutputsEvent", "refresh"), step("resOutputsEvent", "create")])
    assert log.done[URN].op == "create"


def test_a_failure_is_kept_with_its_urn_and_is_not_done() -> None:
    log = parse_events(
        [
            step("resourcePreEvent", "create"),
            error("could not create Deployment: invalid\n", URN),
            error("and more\n", URN),
            step("resOpFailedEvent", "create"),
        ]
    )
    assert log.failures == {URN: "could not create Deployment: invalid\nand more"}
    assert URN not in log.done


def test_a_failure_after_a_same_in_the_refresh_is_a_failure() -> None:
    log = parse_events([step("resOutputsEvent", "same"), step("resOpFailedEvent", "update")])
    assert URN not in log.done
    assert URN in log.failures


def test_errors_of_the_stack_or_of_nobody_are_errors_of_the_run() -> None:
    log = parse_events([error("boom\n"), error("the program failed\n", STACK)])
    assert log.errors == ["boom", "the program failed"]
    assert log.failures == {}


def test_debug_lines_warnings_and_unknown_events_are_passed_over() -> None:
    log = parse_events(
        [
            line("diagnosticEvent", {"prefix": "debug: ", "message": "x", "color": "never", "severity": "debug"}),
            line("diagnosticEvent", {"prefix": "warning: ", "message": "x", "color": "never", "severity": "warning"}),
            line("somethingNewEvent", {"a": 1}),
            line("preludeEvent", {"config": {}}),
            line("cancelEvent", {}),
        ]
    )
    assert (log.done, log.planned, log.failures, log.errors, log.summary) == ({}, {}, {}, [], None)


def test_the_summary_says_whether_the_run_came_to_its_end() -> None:
    assert parse_events([line("summaryEvent", {"result": "succeeded"})]).succeeded
    failed = parse_events([line("summaryEvent", {"result": "failed"})])
    assert failed.summary is not None
    assert not failed.succeeded


def test_a_log_cut_short_by_a_kill_is_read_up_to_the_cut(tmp_path: Path) -> None:
    path = tmp_path / "events.jsonl"
    whole = step("resOutputsEvent", "create")
    path.write_text(whole + step("resOutputsEvent", "update", "urn:pulumi:ns::herdsman::x::y")[:-20])
    log = read_event_log(path)
    assert set(log.done) == {URN}
    assert log.summary is None


def test_a_log_that_was_never_written_is_empty(tmp_path: Path) -> None:
    assert read_event_log(tmp_path / "none").summary is None
