"""The status of a Model: it equals every recorded status of the peer, except where the peer is wrong."""

from __future__ import annotations

import copy
import hashlib
from datetime import UTC, datetime, timedelta
from pathlib import PurePosixPath
from typing import Any

import pytest

from agent.server.models.gguf_header import read_header
from agent.sources.errors import GgufInvalid
from kubeapi.json_types import Json
from program.desired.facts import ClaimFacts, ModelFacts, PrefetchFacts, ProbeFacts, Problem
from program.desired.model import GgufFacts
from program.dialects.llmkube.parse.model import model_of
from program.dialects.llmkube.parse.source import cache_key
from program.dialects.llmkube.status.model import human_size, model_status
from tests.support.vectors import DIRECTORY, Vector, vectors

NOW = datetime(2026, 11, 21, 12, 0, 0, tzinfo=UTC)
LATER = NOW + timedelta(hours=1)
URL = "https://example.com/model.gguf"
GGUF = GgufFacts(
    architecture="llama", name="Big Llama", quantization="Q4_K_M", file_version=3, layer_count=32, head_count_kv=8
)
READ = ProbeFacts(outcome="read", source=URL, gguf=GGUF, size_bytes=4_402_341_478, etag='"v1"')
UNREACHABLE = ProbeFacts(outcome="unreachable", source=URL, reason="SourceUnreachable", message="example.com: refused")
MISSING = ProbeFacts(outcome="unreachable", source=URL, reason="SourceNotFound", message="it is not there (HTTP 404)")
REFUSED = ProbeFacts(outcome="refused", source=URL, reason="SourceRefused", message="a private address")

DEFECTS = {"060/bad": "a wrong checksum", "068/bad-10": "memoryFraction 1.5 is refused at admission"}


def model(source: str = URL, *, generation: int = 1, status: Json | None = None, **spec: Any) -> Json:
    return {
        "apiVersion": "inference.llmkube.dev/v1alpha1",
        "kind": "Model",
        "metadata": {"name": "m", "namespace": "ns", "generation": generation},
        "spec": {"source": source, **spec},
        **({"status": status} if status is not None else {}),
    }


def conditions(status: Json) -> dict[str, tuple[str, str]]:
    return {c["type"]: (c["status"], c["reason"]) for c in status["conditions"]}


def settled(cr: Json, facts: ModelFacts) -> Json:
    """Return the status after one pass, as the API server would store it."""
    return copy.deepcopy(model_status(cr, facts, now=NOW))


# --- the recorded vectors ---------------------------------------------------------------------------------------------


def recorded_models() -> list[tuple[str, Vector, Json, Json]]:
    found = []
    for vector in vectors():
        situation = next(vector.situations())
        for key, status in situation.recorded.items():
            case = f"{vector.name[:3]}/{key.removeprefix('Model/')}"
            if key.startswith("Model/") and case not in DEFECTS:
                found.append((case, vector, situation.objects[key], status))
    return found


def probed(source: str, model_format: str) -> ProbeFacts:
    """Return the result of a probe of a source, if only the fixtures are served."""
    path = PurePosixPath(source.removeprefix("file://").removeprefix("http://127.0.0.1:28080"))
    local = path.is_relative_to("/srv/models")
    file = DIRECTORY / "fixtures" / path.name
    if not (local or path.is_relative_to("/gguf")) or not file.is_file():
        return ProbeFacts(outcome="unreachable", source=source, reason="SourceUnreachable", message="no such host")
    data = file.read_bytes()
    with file.open("rb") as opened:
        try:
            gguf = read_header(opened) if model_format == "gguf" else None
        except GgufInvalid as error:
            return ProbeFacts(outcome="not-gguf", source=source, reason="NotGguf", message=error.message)
    sha256 = hashlib.sha256(data).hexdigest() if local else ""
    return ProbeFacts(outcome="read", source=source, gguf=gguf, size_bytes=len(data), sha256=sha256)


def facts_of(vector: Vector, cr: Json) -> ModelFacts:
    source = cr["spec"]["source"]
    claims = {k.partition("/")[2]: v for k, v in vector.inputs.items() if k.startswith("PersistentVolumeClaim/")}
    claim = None
    if source.startswith("pvc://"):
        name = source.removeprefix("pvc://").partition("/")[0]
        phase = (claims.get(name, {}).get("status") or {}).get("phase", "Pending")
        claim = ClaimFacts(name=name, found=name in claims, bound=phase == "Bound", phase=phase)
    accelerator = (cr["spec"].get("hardware") or {}).get("accelerator", "cpu")
    return ModelFacts(
        probe=probed(source, cr["spec"].get("format", "gguf")),
        claim=claim,
        accelerator_ready=accelerator not in ("cuda", "rocm"),
    )


RECORDED = recorded_models()


def test_there_are_vectors_to_compare_with() -> None:
    assert len(RECORDED) > 80


@pytest.mark.parametrize(("vector", "cr", "recorded"), [r[1:] for r in RECORDED], ids=[r[0] for r in RECORDED])
def test_a_recorded_status_is_reproduced(vector: Vector, cr: Json, recorded: Json) -> None:
    cr = {**cr, "metadata": {**cr["metadata"], "generation": 1}}
    status = settled(cr, facts_of(vector, cr))
    for name in ("phase", "cacheKey", "size", "gguf", "acceleratorReady", "sourceContentLength", "sourceETag"):
        if name == "size" and name not in recorded:
            continue
        if name == "cacheKey" and recorded["phase"] != "Ready":
            continue
        if name == "gguf":
            # Herdsman's status has more fields of the header.
            assert {key: (status.get(name) or {}).get(key) for key in recorded.get(name) or ()} == (
                recorded.get(name) or {}
            )
            continue
        assert status.get(name) == recorded.get(name), name
    for name in ("path", "sha256"):
        if name in recorded:
            assert status[name] == recorded[name], name
    expected = {
        c["type"]: (c["status"], c["reason"])
        for c in recorded["conditions"]
        # LLMKube leaves Progressing=True on a local Model that is Ready.
        if not (c["type"] == "Progressing" and recorded["phase"] == "Ready")
    }
    ours = {"Ready", "Reconciling", "Stalled", "SourceVerified"}
    assert {kind: entry for kind, entry in conditions(status).items() if kind not in ours} == expected


# --- the ready protocol and the time ----------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("facts", "phase", "protocol"),
    [
        (ModelFacts(probe=READ), "Ready", "Ready"),
        (ModelFacts(probe=UNREACHABLE), "Ready", "Ready"),
        (ModelFacts(), "Pending", "Reconciling"),
        (ModelFacts(probe=READ.model_copy(update={"outcome": "mismatch", "message": "m"})), "Failed", "Stalled"),
        (ModelFacts(probe=ProbeFacts(outcome="not-gguf", source=URL, message="m")), "Failed", "Stalled"),
        (ModelFacts(problem=Problem(reason="SourceNotAllowed", message="m", terminal=True)), "Failed", "Stalled"),
    ],
)
def test_exactly_one_of_the_ready_protocol_is_true(facts: ModelFacts, phase: str, protocol: str) -> None:
    status = settled(model(), facts)
    assert status["phase"] == phase
    assert {kind for kind in ("Ready", "Reconciling", "Stalled") if conditions(status)[kind][0] == "True"} == {protocol}
    assert status["observedGeneration"] == 1
    assert all(c["observedGeneration"] == 1 for c in status["conditions"])


def test_nothing_new_gives_back_the_very_same_status() -> None:
    before = settled(model(), ModelFacts(probe=READ))
    cr = model(status=before)
    assert model_status(cr, ModelFacts(probe=READ), now=LATER) is before
    # Other managers may add conditions, and lists may have any order.
    cr = model(
        status={**before, "conditions": [*reversed(before["conditions"]), {"type": "Foreign", "status": "True"}]}
    )
    assert model_status(cr, ModelFacts(probe=READ), now=LATER) is cr["status"]


def test_times_change_only_with_what_they_are_about() -> None:
    before = settled(model(), ModelFacts(probe=UNREACHABLE))
    after = model_status(model(generation=2, status=before), ModelFacts(probe=READ), now=LATER)
    times = {c["type"]: c["lastTransitionTime"] for c in after["conditions"]}
    assert (times["Available"], times["SourceVerified"]) == ("2026-11-21T12:00:00Z", "2026-11-21T13:00:00Z")
    assert (before["lastUpdated"], after["lastUpdated"]) == ("2026-11-21T12:00:00Z", "2026-11-21T13:00:00Z")


# --- what was verified ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("probe", "sha256", "expected"),
    [
        (READ, None, ("True", "SourceRead")),
        (READ, "a" * 64, ("False", "ChecksumPending")),
        (READ.model_copy(update={"sha256": "a" * 64}), "A" * 64, ("True", "ChecksumMatched")),
        (UNREACHABLE, None, ("False", "SourceUnreachable")),
        (UNREACHABLE.model_copy(update={"reason": "SourceNotFound"}), None, ("False", "SourceNotFound")),
        (UNREACHABLE.model_copy(update={"reason": "LookInterrupted"}), None, ("False", "LookInterrupted")),
        (REFUSED, None, ("False", "SourceRefused")),
        (READ.model_copy(update={"outcome": "mismatch"}), "a" * 64, ("False", "ChecksumMismatch")),
    ],
)
def test_a_condition_says_what_was_not_verified(
    probe: ProbeFacts, sha256: str | None, expected: tuple[str, str]
) -> None:
    status = settled(model(**({"sha256": sha256} if sha256 else {})), ModelFacts(probe=probe))
    assert conditions(status)["SourceVerified"] == expected


def test_a_wrong_checksum_fails_the_model_and_an_edit_recovers_it() -> None:
    mismatch = READ.model_copy(update={"outcome": "mismatch", "reason": "ChecksumMismatch", "message": "is x, not y"})
    failed = settled(model(sha256="0" * 64), ModelFacts(probe=mismatch))
    assert conditions(failed)["Degraded"] == ("True", "IntegrityCheckFailed")
    assert "Available" not in conditions(failed)
    # The edit is seen before the file was probed again: the Model is neither Ready nor still Failed.
    edited = model(generation=2, status=failed)
    waiting = settled(edited, ModelFacts())
    assert waiting["phase"] == "Pending"
    ready = settled({**edited, "status": waiting}, ModelFacts(probe=READ))
    assert ready["phase"] == "Ready"
    assert "Degraded" not in conditions(ready)


def test_a_source_that_cannot_be_parsed_is_named_with_its_field() -> None:
    status = settled(model("ftp://host/x.gguf"), ModelFacts())
    assert status["phase"] == "Failed"
    stalled = next(c for c in status["conditions"] if c["type"] == "Stalled")
    assert stalled["reason"] == "SpecInvalid"
    assert stalled["message"].startswith("spec.source: scheme `ftp`")


# --- one source at a time ---------------------------------------------------------------------------------------------


def test_an_edited_source_never_keeps_facts_of_the_old_one() -> None:
    other = "https://example.com/other.gguf"
    before = settled(model(), ModelFacts(probe=READ))
    edited = model(other, generation=2, status=before)
    for facts in (ModelFacts(probe=READ), ModelFacts()):
        status = settled(edited, facts)
        assert status["phase"] == "Pending"
        assert not {"gguf", "size", "path", "sourceETag", "sourceContentLength", "cacheKey"} & status.keys()
    unreachable = settled(edited, ModelFacts(probe=UNREACHABLE.model_copy(update={"source": other})))
    assert unreachable["cacheKey"] == cache_key(other)
    assert unreachable["path"] == f"/models/{cache_key(other)}/m.gguf"
    assert unreachable["size"] == "0"
    assert "gguf" not in unreachable


def test_the_file_keeps_the_name_it_was_given_first() -> None:
    key = cache_key(URL)
    first = settled(model(), ModelFacts(probe=UNREACHABLE))
    assert first["path"] == f"/models/{key}/m.gguf"
    later = settled(model(status=first), ModelFacts(probe=READ))
    assert later["path"] == f"/models/{key}/m.gguf"
    assert later["gguf"]["modelName"] == "Big Llama"
    assert model_of(model(status=later)).file_name == "m.gguf"
    fresh = settled(model(), ModelFacts(probe=READ))
    assert fresh["path"] == f"/models/{key}/Big-Llama.gguf"
    assert model_of(model(status=fresh)).file_name == "Big-Llama.gguf"


@pytest.mark.parametrize(("gguf", "name"), [({"modelName": "Old Name"}, "Old-Name.gguf"), (None, "m.gguf")])
def test_a_file_that_the_peer_named_is_found_again(gguf: Json | None, name: str) -> None:
    peer: Json = {"phase": "Ready", "cacheKey": cache_key(URL), "conditions": []}
    if gguf:
        peer["gguf"] = gguf
    status = settled(model(status=peer), ModelFacts(probe=READ))
    assert status["path"] == f"/models/{cache_key(URL)}/{name}"


def test_a_restarted_loop_keeps_what_it_knew_until_it_has_looked() -> None:
    before = settled(model(), ModelFacts(probe=READ))
    cr = model(status=before)
    assert model_status(cr, ModelFacts(), now=LATER) is before
    failed = settled(model(sha256="0" * 64), ModelFacts(probe=READ.model_copy(update={"outcome": "mismatch"})))
    assert settled(model(sha256="0" * 64, status=failed), ModelFacts())["phase"] == "Failed"


# --- drift ------------------------------------------------------------------------------------------------------------


def test_a_source_that_changed_is_drift_and_the_baseline_stays() -> None:
    before = settled(model(), ModelFacts(probe=READ))
    changed = READ.model_copy(update={"etag": '"v2"', "gguf": GGUF.model_copy(update={"name": "New"})})
    drifted = settled(model(status=before), ModelFacts(probe=changed))
    assert conditions(drifted)["SourceDrifted"] == ("True", "UpstreamChanged")
    assert (drifted["sourceETag"], drifted["gguf"]["modelName"]) == ('"v1"', "Big Llama")
    # A probe that fails changes nothing; the return of the old version does.
    assert conditions(settled(model(status=drifted), ModelFacts(probe=UNREACHABLE)))["SourceDrifted"][0] == "True"
    assert conditions(settled(model(status=drifted), ModelFacts(probe=READ)))["SourceDrifted"] == ("False", "InSync")


def test_without_etags_the_size_tells() -> None:
    plain = READ.model_copy(update={"etag": None})
    before = settled(model(), ModelFacts(probe=plain))
    assert conditions(settled(model(status=before), ModelFacts(probe=plain)))["SourceDrifted"][0] == "False"
    larger = plain.model_copy(update={"size_bytes": 1})
    assert conditions(settled(model(status=before), ModelFacts(probe=larger)))["SourceDrifted"][0] == "True"


# --- what the peer left -----------------------------------------------------------------------------------------------


def test_conditions_that_the_peer_left_on_are_switched_off() -> None:
    left = {"status": "True", "observedGeneration": 1, "lastTransitionTime": "2026-01-01T00:00:00Z", "message": ""}
    peer = {
        "phase": "Ready",
        "cacheKey": cache_key(URL),
        "conditions": [
            {"type": "Progressing", "reason": "CopyStarted", **left},
            {"type": "Degraded", "reason": "CopyFailed", **left},
        ],
    }
    status = settled(model(status=peer), ModelFacts(probe=READ))
    assert conditions(status)["Progressing"] == conditions(status)["Degraded"] == ("False", "Superseded")
    again = model(status=status)
    assert model_status(again, ModelFacts(probe=READ), now=LATER) is again["status"]


# --- claims and sizes -------------------------------------------------------------------------------------------------


def test_a_claim_is_followed_from_missing_to_bound_and_back() -> None:
    cr = model("pvc://weights/chat/plain.gguf")
    phases = []
    for found, phase in ((False, ""), (True, "Pending"), (True, "Bound"), (False, "")):
        claim = ClaimFacts(name="weights", found=found, bound=phase == "Bound", phase=phase)
        cr["status"] = settled(cr, ModelFacts(claim=claim))
        phases.append((cr["status"]["phase"], cr["status"].get("path")))
    assert phases == [
        ("Failed", None),
        ("Pending", None),
        ("Ready", "/model-source/chat/plain.gguf"),
        ("Failed", None),
    ]


def test_a_directory_of_the_node_is_ready_without_a_look_and_keeps_its_path() -> None:
    cr = model("file:///srv/models/llama", format="safetensors", sha256="a" * 64)
    cr["status"] = settled(cr, ModelFacts())
    assert (cr["status"]["phase"], cr["status"]["path"]) == ("Ready", "/srv/models/llama")
    assert "cacheKey" not in cr["status"]
    assert conditions(cr["status"])["SourceVerified"] == ("False", "ChecksumNotChecked")
    assert "mount" in next(c["message"] for c in cr["status"]["conditions"] if c["type"] == "Ready")
    assert model_status(cr, ModelFacts(), now=LATER) is cr["status"]
    assert model_of(cr).source.directory
    refused = Problem(reason="SourceNotAllowed", message="no", field="spec.source", terminal=True)
    assert settled(cr, ModelFacts(problem=refused))["phase"] == "Failed"


def test_a_model_on_a_host_keeps_the_file_name_that_its_plan_has() -> None:
    cr = model("file:///srv/mlx/llama", format="mlx", hardware={"accelerator": "metal"})
    before = model_of(cr).file_name
    cr["status"] = settled(cr, ModelFacts())
    assert conditions(cr["status"])["Ready"] == ("True", "MetalAgentManaged")
    assert model_of(cr).file_name == before == "m.gguf"


def test_a_checksum_that_nobody_checks_is_not_passed_over() -> None:
    claim = ClaimFacts(name="w", found=True, bound=True, phase="Bound")
    status = settled(model("pvc://w/x.gguf", sha256="a" * 64), ModelFacts(claim=claim))
    assert conditions(status)["SourceVerified"] == ("False", "ChecksumNotChecked")


@pytest.mark.parametrize(
    ("size", "text"),
    [
        (0, "0 B"),
        (544, "544 B"),
        (1024, "1.0 KiB"),
        (1 << 20, "1.0 MiB"),
        (4_402_341_478, "4.1 GiB"),
        (1 << 42, "4096.0 GiB"),
    ],
)
def test_sizes_are_written_for_people(size: int, text: str) -> None:
    assert human_size(size) == text


# --- a source that is not there ---------------------------------------------------------------------------------------


def ready_message(status: Json) -> str:
    return next(str(c["message"]) for c in status["conditions"] if c["type"] == "Ready")


def test_a_model_that_answers_404_is_not_ready_until_it_is_there() -> None:
    failed = settled(model(), ModelFacts(probe=MISSING))
    assert failed["phase"] == "Failed"
    told = conditions(failed)
    assert told["Ready"] == ("False", "SourceNotFound")
    assert told["Degraded"] == ("True", "SourceNotFound")
    assert told["Reconciling"][0] == "True"
    assert told["Stalled"][0] == "False"
    assert "HTTP 404" in ready_message(failed)
    again = settled(model(status=failed), ModelFacts(probe=MISSING))
    assert again == failed
    ready = settled(model(status=failed), ModelFacts(probe=READ))
    assert (ready["phase"], ready["sourceContentLength"]) == ("Ready", READ.size_bytes)


def test_a_model_that_was_ready_stays_so_when_its_source_goes() -> None:
    ready = settled(model(), ModelFacts(probe=READ))
    gone = settled(model(status=ready), ModelFacts(probe=MISSING))
    assert (gone["phase"], gone["path"], gone["gguf"]) == ("Ready", ready["path"], ready["gguf"])
    assert "HTTP 404" in ready_message(gone)
    assert "a pod that has none cannot start" in ready_message(gone)
    assert conditions(gone)["SourceVerified"] == ("False", "SourceNotFound")


def test_an_edit_to_a_source_that_is_not_there_is_judged_anew() -> None:
    ready = settled(model(), ModelFacts(probe=READ))
    other = "https://example.com/other.gguf"
    probe = MISSING.model_copy(update={"source": other})
    assert settled(model(other, status=ready), ModelFacts(probe=probe))["phase"] == "Failed"


def test_a_prefetched_model_and_one_of_a_host_do_without_the_source() -> None:
    done = PrefetchFacts(job="fetch", state="done")
    cached = settled(model(prefetch=True), ModelFacts(probe=MISSING, prefetch=done))
    assert cached["phase"] == "Ready"
    assert "a pod that has none cannot start" in ready_message(cached)
    fetching = PrefetchFacts(job="fetch", state="running")
    assert settled(model(prefetch=True), ModelFacts(probe=MISSING, prefetch=fetching))["phase"] == "Downloading"
    assert settled(model(hardware={"accelerator": "metal"}), ModelFacts(probe=MISSING))["phase"] == "Ready"


@pytest.mark.parametrize("probe", [UNREACHABLE, REFUSED])
def test_what_only_the_loop_cannot_reach_stays_ready_for_pods(probe: ProbeFacts) -> None:
    """Pods can reach private addresses. The loop connects to them only if that is configured."""
    status = settled(model(), ModelFacts(probe=probe))
    assert status["phase"] == "Ready"
    assert conditions(status)["SourceVerified"] == ("False", probe.reason)
