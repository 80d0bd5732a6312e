"""The status of a Model while its weights are downloaded: sets of files, progress, prefetch, a changed source."""

from __future__ import annotations

import copy
from datetime import UTC, datetime, timedelta
from typing import Any, Literal

import pytest

from kubeapi.json_types import Json
from program.desired.facts import ModelFacts, PrefetchFacts, ProbeFacts, TransferFacts
from program.desired.model import GgufFacts
from program.dialects.llmkube.parse.model import model_of
from program.dialects.llmkube.parse.source import cache_key
from program.dialects.llmkube.status.model import human_duration, model_status
from program.dialects.llmkube.status.model_phase import prefetch_problem

NOW = datetime(2026, 11, 21, 12, 0, 0, tzinfo=UTC)
LATER = NOW + timedelta(hours=1)
SET = "hf://acme/tiny"
URL = "https://example.com/model.gguf"
GGUF = GgufFacts(architecture="llama", name="Big Llama", layer_count=2, head_counts_kv=(4, 0), weights_bytes=77)


def model(source: str = SET, *, status: Json | None = None, **spec: Any) -> Json:
    return {
        "apiVersion": "inference.llmkube.dev/v1alpha1",
        "kind": "Model",
        "metadata": {"name": "m", "namespace": "ns", "generation": 1},
        "spec": {"source": source, **spec},
        **({"status": status} if status is not None else {}),
    }


def read(source: str = SET, size: int = 3000, etag: str = '"1"') -> ProbeFacts:
    return ProbeFacts(outcome="read", source=source, gguf=GGUF, size_bytes=size, etag=etag)


def condition(status: Json, kind: str) -> tuple[str, str]:
    return next((c["status"], c["reason"]) for c in status["conditions"] if c["type"] == kind)


def after(cr: Json, facts: ModelFacts, now: datetime = NOW) -> Json:
    return copy.deepcopy(model_status(cr, facts, now=now))


# --- sets of files ----------------------------------------------------------------------------------------------------


def test_a_set_is_described_by_its_first_file_and_the_size_of_all() -> None:
    cr = model(files=["q4/a-1.gguf", "q4/a-2.gguf"], mmproj="mmproj.gguf")
    status = after(cr, ModelFacts(probe=read()))
    key = cache_key(SET)
    assert (status["phase"], status["cacheKey"]) == ("Ready", key)
    assert status["path"] == f"/models/{key}/q4/a-1.gguf"
    assert status["stagedFiles"] == ["q4/a-1.gguf", "q4/a-2.gguf", "mmproj.gguf"]
    assert (status["size"], status["gguf"]["headCountsKV"], status["gguf"]["weightsBytes"]) == ("2.9 KiB", [4, 0], 77)
    assert model_of({**cr, "status": status}).gguf is not None


def test_all_of_a_header_comes_back_out_of_the_status() -> None:
    facts = {name: 3 for name, field in GgufFacts.model_fields.items() if "int" in str(field.annotation)}
    facts |= {"head_counts_kv": (3, 0), "value_length": 0, "sliding_window_layers": 0}
    gguf = GgufFacts(architecture="a", name="n", quantization="q", license="l", **facts)
    probe = ProbeFacts(outcome="read", source=URL, gguf=gguf, size_bytes=1)
    assert model_of(model(URL, status=after(model(URL), ModelFacts(probe=probe)))).gguf == gguf


def test_another_set_below_the_same_source_takes_over_nothing() -> None:
    old = after(model(files=["old.gguf"]), ModelFacts(probe=read()))
    changed = model(files=["new.gguf"], status=old)
    pending = after(changed, ModelFacts())
    assert pending["phase"] == "Pending"
    assert "gguf" not in pending
    ready = after({**changed, "status": pending}, ModelFacts(probe=read(size=9)))
    assert (ready["sourceContentLength"], ready["stagedFiles"]) == (9, ["new.gguf"])
    assert condition(ready, "SourceDrifted") == ("False", "InSync")


@pytest.mark.parametrize(
    ("spec", "field"),
    [
        ({"files": ["../a.gguf"]}, "spec.files[0]"),
        ({"files": ["a.gguf"], "mmproj": "/etc/passwd"}, "spec.mmproj"),
        ({"mmproj": "a.gguf"}, "spec.mmproj"),
        ({"source": URL, "files": ["a.gguf"]}, "spec.files"),
    ],
)
def test_an_unsafe_set_is_never_ready(spec: Json, field: str) -> None:
    ready = after(model(files=["a.gguf"]), ModelFacts(probe=read()))
    status = after(model(**{"status": ready, **spec}), ModelFacts(probe=read()))
    assert status["phase"] == "Failed"
    assert condition(status, "Degraded") == ("True", "InvalidFileSet")
    assert condition(status, "Stalled")[0] == "True"
    message = next(c["message"] for c in status["conditions"] if c["type"] == "Stalled")
    assert message.startswith(f"{field}: ")


# --- progress ---------------------------------------------------------------------------------------------------------


def test_a_download_shows_how_far_it_is() -> None:
    transfer = TransferFacts(done_bytes=1 << 30, total_bytes=4 << 30, bytes_per_s=100 << 20, where="pod/m-0")
    status = after(model(URL), ModelFacts(probe=read(URL), transfer=transfer))
    assert status["phase"] == "Ready"
    assert status["download"] == {
        "bytes": 1 << 30,
        "total": 4 << 30,
        "percent": 25,
        "rate": "100.0 MiB/s",
        "eta": "31s",
        "where": "pod/m-0",
    }
    over = after(model(URL, status=status), ModelFacts(probe=read(URL)))
    assert "download" not in over


def test_a_download_of_unknown_size_shows_what_is_known() -> None:
    transfer = TransferFacts(done_bytes=5, where="pod/m-0")
    status = after(model(URL), ModelFacts(probe=read(URL), transfer=transfer))
    assert status["download"] == {"bytes": 5, "where": "pod/m-0"}


@pytest.mark.parametrize(("seconds", "text"), [(0.2, "0s"), (59.4, "59s"), (130, "2m10s"), (3900, "1h5m")])
def test_durations_are_written_by_their_two_largest_units(seconds: float, text: str) -> None:
    assert human_duration(seconds) == text


# --- prefetch ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("state", "phase", "kind", "reason"),
    [
        ("started", "Downloading", "Progressing", "PrefetchStarted"),
        ("running", "Downloading", "Progressing", "PrefetchRunning"),
        ("done", "Ready", "Available", "ModelPrefetched"),
        ("failed", "Failed", "Degraded", "PrefetchFailed"),
        ("invalid", "Failed", "Degraded", "PrefetchInvalid"),
    ],
)
def test_a_prefetch_shows_in_phase_and_reason(
    state: Literal["started", "running", "done", "failed", "invalid"], phase: str, kind: str, reason: str
) -> None:
    facts = ModelFacts(probe=read(URL), prefetch=PrefetchFacts(job="m-prefetch", state=state, message="401"))
    status = after(model(URL, prefetch=True), facts)
    assert (status["phase"], condition(status, kind)) == (phase, ("True", reason))
    if state in ("started", "running", "done"):
        assert status["gguf"]["layerCount"] == 2


def test_a_restart_of_the_loop_unmakes_no_prefetch() -> None:
    cr = model(URL, prefetch=True)
    for state in ("running", "done"):
        facts = ModelFacts(probe=read(URL), prefetch=PrefetchFacts(job="m-prefetch", state=state))
        before = after(cr, facts)
        # A new process has not inspected the source yet.
        restarted = after({**cr, "status": before}, facts.model_copy(update={"probe": None}), LATER)
        assert restarted == before


@pytest.mark.parametrize(
    ("spec", "why"),
    [
        ({"source": URL}, ""),
        ({"source": "s3://bucket/x.gguf"}, ""),
        ({"source": SET, "files": ["a.gguf"]}, ""),
        ({"source": SET}, "nothing to cache"),
        ({"source": "pvc://claim/x.gguf"}, "nothing to cache"),
        ({"source": "/srv/x.gguf"}, "pods of a node copy its file"),
        ({"source": URL, "hardware": {"accelerator": "metal"}}, "host"),
    ],
)
def test_only_what_is_cached_can_be_prefetched(spec: Json, why: str) -> None:
    found = prefetch_problem(model_of(model(**spec)))
    assert why in found
    assert bool(found) == bool(why)


# --- a source that changed --------------------------------------------------------------------------------------------


def test_drift_is_over_once_a_pod_has_fetched_the_new_version() -> None:
    cr = model(URL, refreshPolicy="OnChange")
    first = after(cr, ModelFacts(probe=read(URL)))
    drifted = after({**cr, "status": first}, ModelFacts(probe=read(URL, 9, '"2"')), LATER)
    assert condition(drifted, "SourceDrifted") == ("True", "UpstreamChanged")
    assert drifted["sourceETag"] == '"1"'
    fetched = after({**cr, "status": drifted}, ModelFacts(probe=read(URL, 9, '"2"'), refetched=True), LATER)
    assert condition(fetched, "SourceDrifted") == ("False", "InSync")
    assert (fetched["sourceETag"], fetched["sourceContentLength"]) == ('"2"', 9)
    quiet = after({**cr, "status": fetched}, ModelFacts(probe=read(URL, 9, '"2"')), LATER)
    assert quiet == fetched
    # The file keeps its first name, which pods use.
    assert fetched["path"] == first["path"]
