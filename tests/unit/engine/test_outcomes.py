"""The outcome of each service of a run, by the log of the run."""

from __future__ import annotations

from automation.engine import outcomes
from automation.engine.cli_process import CliResult
from automation.engine.outcomes import Targets
from automation.engine.port import AccessoriesRefused, Batch, Change, Stack
from automation.engine.run_log import RunLog
from automation.engine.state_index import StateIndex
from components import urns
from components.rendered import RenderedService
from tests.fakes.rendered import cache, key, service

STACK = Stack("default")
A, B = service("a", cached=True), service("b", cached=True)


def done(*services: RenderedService, op: str = "create") -> dict[str, Change]:
    found = frozenset[str]().union(*(urns.own_urns(one, STACK.name) for one in services))
    found |= urns.shared_urns(cache(), STACK.name)
    return {urn: Change(urn, "", "", "create" if op == "create" else "delete") for urn in found}


def targets(*services: RenderedService, remove: tuple[RenderedService, ...] = ()) -> Targets:
    index = StateIndex("default")
    for gone in remove:
        index.record([Change(urn, "", "", "create") for urn in urns.own_urns(gone, STACK.name)])
    return Targets.of(Batch(STACK, services, tuple(gone.key for gone in remove)), index)


def result(code: int = 1, stdout: str = "", stderr: str = "") -> CliResult:
    return CliResult(code, stdout, stderr, 0.1)


def test_a_service_is_well_when_all_its_urns_are_done_whatever_the_exit_code() -> None:
    found = outcomes.service_outcomes(targets(A, B), RunLog(done=done(A)), result(255), preview=False)
    assert found[A.key].ok
    assert not found[B.key].ok


def test_a_missing_urn_without_a_failure_takes_the_words_of_the_run() -> None:
    log = RunLog(
        done=done(A), errors=["update failed", "the program failed: boom\nTraceback (most recent call last)\n x"]
    )
    error = outcomes.service_outcomes(targets(A, B), log, result(), preview=False)[B.key].error
    assert error is not None
    assert error.message == "the program failed: boom"
    assert error.urn is None


def test_a_failure_of_a_shared_object_is_one_of_all_that_need_it() -> None:
    claim = urns.shared_object_urn(cache(), STACK.name)
    alone = service("alone")
    log = RunLog(done={**done(A, B, alone)}, failures={claim: "no such storage class"})
    found = outcomes.service_outcomes(targets(A, B, alone), log, result(), preview=False)
    assert [found[one.key].ok for one in (A, B, alone)] == [False, False, True]
    error = found[A.key].error
    assert error is not None
    assert (error.urn, error.message, error.reason) == (claim, "no such storage class", "ApplyFailed")


def test_a_removed_service_is_well_only_when_every_part_was_deleted() -> None:
    whole = RunLog(done=done(A, op="delete"))
    assert outcomes.service_outcomes(targets(remove=(A,)), whole, result(0), preview=False)[A.key].ok
    part = RunLog(done={urn: change for urn, change in whole.done.items() if "deployment" not in urn})
    assert not outcomes.service_outcomes(targets(remove=(A,)), part, result(), preview=False)[A.key].ok


def test_a_dropped_part_that_could_not_be_deleted_fails_its_service() -> None:
    before = service("a", autoscaled=True, cached=True)
    index = StateIndex("default")
    index.record([Change(urn, "", "", "create") for urn in urns.own_urns(before, STACK.name)])
    judged = Targets.of(Batch(STACK, (A,)), index)
    hpa = urns.object_urn(before.key, before.objects[1], STACK.name)
    log = RunLog(done=done(A), failures={hpa: "a finalizer holds it"})
    error = outcomes.service_outcomes(judged, log, result(), preview=False)[A.key].error
    assert error is not None
    assert error.urn == hpa


def test_a_foreign_object_has_a_reason_of_its_own() -> None:
    urn = urns.object_urn(A.key, A.objects[0], STACK.name)
    log = RunLog(failures={urn: "Service `default/a` already exists and belongs to field manager `helm`."})
    error = outcomes.service_outcomes(targets(A), log, result(), preview=False)[A.key].error
    assert error is not None
    assert error.reason == "ForeignObject"


def test_components_are_no_changes_to_anybody() -> None:
    log = RunLog(done=done(A))
    changes = outcomes.service_outcomes(targets(A), log, result(0), preview=False)[A.key].changes
    assert len(changes) == 2
    assert len(outcomes.shared_changes(targets(A), log, preview=False)) == 1


def test_a_refused_accessory_fails_its_service_as_a_whole_only_beside_something_else() -> None:
    scaled = service("scaled", autoscaled=True)
    at = {obj.kind: urns.object_urn(scaled.key, obj, STACK.name) for obj in scaled.objects}
    scaler, last = at["HorizontalPodAutoscaler"], at["Deployment"]
    standing = {urn: change for urn, change in done(scaled).items() if urn != scaler}
    log = RunLog(
        done=standing,
        failures={scaler: "HorizontalPodAutoscaler scaled already exists and belongs to field manager `helm`"},
    )
    error = outcomes.service_outcomes(targets(scaled), log, result(), preview=False)[scaled.key].error
    assert isinstance(error, AccessoriesRefused)
    assert [(each.kind, each.name, each.reason) for each in error.refused] == [
        ("HorizontalPodAutoscaler", "scaled", "ForeignObject")
    ]
    without_last = RunLog(
        done={urn: change for urn, change in standing.items() if urn != last},
        failures={**log.failures, last: "no such image policy"},
    )
    error = outcomes.service_outcomes(targets(scaled), without_last, result(), preview=False)[scaled.key].error
    assert error is not None and not isinstance(error, AccessoriesRefused)
    assert (error.urn, error.message) == (last, "no such image policy")


def test_a_preview_is_judged_by_what_is_planned() -> None:
    log = RunLog(planned=done(A))
    assert outcomes.service_outcomes(targets(A), log, result(0), preview=True)[A.key].ok
    assert not outcomes.service_outcomes(targets(A), log, result(0), preview=False)[A.key].ok


def test_a_run_that_died_is_told_in_the_words_it_printed() -> None:
    died = result(255, "Updating (ns):\n", "error: 2 errors occurred:\n\t* no space left on device\n\t* read-only\n\n")
    assert outcomes.failure_message(RunLog(), died) == (
        "error: 2 errors occurred:\n\t* no space left on device\n\t* read-only"
    )
    assert outcomes.failure_message(RunLog(), result(-9, "a\nb\nc\nd\n")) == "b\nc\nd"
    assert "exit code -9" in outcomes.failure_message(RunLog(), result(-9))


def test_an_empty_batch_is_well_for_all() -> None:
    found = outcomes.empty_outcome(targets(RenderedService.of(key("x"), ())), duration_s=0.1)
    assert found.cli_processes == 0
    assert found.services[key("x")].ok


def test_an_event_tells_what_was_done_and_what_it_changed() -> None:
    changes = (
        Change("u1", "Deployment", "chat", "update", details=("replicas 1 -> 2", "env A changed")),
        Change("u2", "Service", "chat", "same"),
        Change("u3", "Ingress", "chat", "create"),
    )
    assert outcomes.describe_changes(changes) == (
        "Updated Deployment chat: replicas 1 -> 2, env A changed; created Ingress chat"
    )
    assert outcomes.describe_changes((changes[1],)) == ""


def test_an_event_of_many_differences_stays_short_and_counts_the_rest() -> None:
    many = tuple(f"containers[x].args --flag-{number} {number} -> ä" for number in range(100))
    text = outcomes.describe_changes((Change("u", "Deployment", "chat", "update", details=many),))
    assert len(text.encode()) <= 1024
    left = int(text.rpartition(" and ")[2].split()[0])
    assert text.count("--flag-") + left == 100


def test_a_run_that_the_kernel_killed_for_memory_says_so_and_what_to_set() -> None:
    killed = CliResult(-9, "", "half a line", 0.1, out_of_memory=True)
    error = outcomes.run_error(RunLog(errors=["update failed"]), killed)
    assert error.reason == "EngineOutOfMemory"
    assert "memory limit" in error.message and "herdsman install --memory" in error.message
