"""The context of services on hosts that set none: what fits for a new process, the same as before for a running one."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import pytest

from automation.cache import trim_hosts
from automation.hosts.host_contexts import context_notes, memory_at_context, with_contexts
from automation.hosts.registry import HostRegistry
from components.render import RenderOptions, render
from kubeapi.json_types import Json
from program import sizing
from program.desired.adapter import AdapterFile
from program.desired.engines import LlamaCpp, Vllm
from program.desired.keys import ServiceKey
from program.desired.model import GgufFacts, ModelSource, SourceKind
from program.desired.service import DesiredService, HostContext, HostPlacement
from program.host_context import MOST_CONTEXT, PENDING, USABLE_SHARE, HostRoom, default_context, takes_default
from program.runtimes.llamacpp import HOST_CONTEXT_SIZE
from tests.support.builders import http_model, service

GIB = 1 << 30
KEY = ServiceKey("llmkube", "ns", "svc")
HEADER = GgufFacts(
    architecture="llama",
    context_length=131_072,
    layer_count=32,
    embedding_size=4096,
    head_count=32,
    head_count_kv=8,
    weights_bytes=5 * GIB,
)
"""A KV cache of 128 KiB a token, as of an 8B model: 4 GiB at 32,768 tokens."""

OTHER = ModelSource(kind=SourceKind.HTTP, address="https://models.example/other.gguf", path="other.gguf")


def hosted(
    engine: Any = None, *, gguf: GgufFacts | None = HEADER, source: ModelSource | None = None, **placement: Any
) -> DesiredService:
    model = http_model(gguf=gguf, **({"source": source} if source else {}))
    values = {"host": "mac", **placement}
    return service(key=KEY, engine=engine or LlamaCpp(), model=model, host_placement=HostPlacement(**values))


def tokens(free_gib: float, gpu_gib: float | None = None, **changes: Any) -> int:
    gpu = None if gpu_gib is None else int(gpu_gib * GIB)
    return default_context(hosted(**changes), HostRoom(int(free_gib * GIB), gpu)).tokens


def test_the_longest_context_that_fits_is_chosen_and_the_sum_is_within_the_budget() -> None:
    assert [tokens(free) for free in (64, 9, 7.8, 6.8, 6.3, 5.7)] == [32_768, 16_384, 16_384, 8_192, 4_096, 2_048]
    for free in (7.0, 8.0, 9.0, 12.0):
        found = default_context(hosted(), HostRoom(int(free * GIB)))
        need = sizing.estimate(hosted(contexts=(found,)))
        assert need is not None and need.total_bytes <= free * GIB * USABLE_SHARE


def test_the_trained_context_and_the_upper_default_are_limits() -> None:
    assert tokens(640) == MOST_CONTEXT
    short = HEADER.model_copy(update={"context_length": 8_192})
    assert tokens(64, gguf=short) == 8_192
    # llama-server serves a model that was trained with less at this length, too, as before.
    assert tokens(64, gguf=HEADER.model_copy(update={"context_length": 512})) == HOST_CONTEXT_SIZE


def test_what_never_fits_gets_the_least_context_and_the_host_says_why() -> None:
    assert tokens(1) == HOST_CONTEXT_SIZE


def test_a_separate_gpu_limits_only_models_on_it() -> None:
    on_gpu = hosted()
    on_gpu = on_gpu.model_copy(update={"model": on_gpu.model.model_copy(update={"accelerator": "cuda"})})
    assert default_context(on_gpu, HostRoom(64 * GIB, 7 * GIB)).tokens < MOST_CONTEXT
    assert tokens(64, 7) == MOST_CONTEXT


@pytest.mark.parametrize(
    ("desired", "room"),
    [
        (hosted(), None),
        (hosted(gguf=None), HostRoom(64 * GIB)),
        (hosted(gguf=GgufFacts(weights_bytes=GIB)), HostRoom(64 * GIB)),
        (hosted(gguf=HEADER.model_copy(update={"weights_bytes": None})), HostRoom(64 * GIB)),
    ],
)
def test_an_unknown_model_or_host_leaves_the_choice_for_later(desired: DesiredService, room: HostRoom | None) -> None:
    assert default_context(desired, room) == PENDING


@pytest.mark.parametrize(
    "engine",
    [LlamaCpp(context_size=512), LlamaCpp(extra_args=("-c", "512")), LlamaCpp(extra_args=("--ctx-size=9",)), Vllm()],
)
def test_a_context_that_somebody_set_stays(engine: Any) -> None:
    desired = hosted(engine)
    assert not takes_default(desired)
    assert with_contexts(desired, {}, lambda *_: HostRoom(64 * GIB)) == desired


def process_of(desired: DesiredService, replica: int = 0, **status: Any) -> Json:
    """Return the HostProcess of a service as the loop's cache has it."""
    manifest = render(desired, RenderOptions()).objects[replica].manifest
    metadata = {**manifest["metadata"], "uid": "u", "resourceVersion": "1"}
    return trim_hosts.host_process({**manifest, "metadata": metadata, "status": status})


def chosen(desired: DesiredService, live: Mapping[int, Json] | None = None, *, free: float = 64) -> HostContext | None:
    found = with_contexts(desired, live or {}, lambda *_: HostRoom(int(free * GIB)))
    assert found.host_placement is not None
    return found.host_placement.context_of(0)


def test_a_new_process_has_the_context_in_its_arguments_and_says_who_chose_it() -> None:
    (made,) = render(with_contexts(hosted(), {}, lambda *_: HostRoom(64 * GIB)), RenderOptions()).objects
    argv = made.manifest["spec"]["argv"]
    assert argv[argv.index("--ctx-size") + 1] == "32768"
    assert made.manifest["metadata"]["annotations"]["herdsman.dev/default-context"] == "32768"


def test_a_process_of_an_earlier_version_keeps_its_context_to_the_letter() -> None:
    old = hosted()
    upgraded = with_contexts(old, {0: process_of(old, ready=True)}, lambda *_: HostRoom(64 * GIB))
    assert upgraded.host_placement is not None and upgraded.host_placement.contexts == (HostContext(tokens=2048),)
    assert render(upgraded, RenderOptions()) == render(old, RenderOptions())


def test_a_chosen_context_does_not_follow_the_memory_of_the_host() -> None:
    first = hosted(contexts=(chosen(hosted(), free=9),))
    for free in (64, 9, 6.3):
        again = chosen(hosted(), {0: process_of(first, ready=True)}, free=free)
        assert again == HostContext(tokens=16_384, chosen="default")


def test_a_process_that_gets_an_adapter_keeps_its_context() -> None:
    adapter = AdapterFile(name="sql", source=http_model().model_copy(update={"source": OTHER}))
    alone = hosted(contexts=(chosen(hosted(), free=9),))
    both = alone.model_copy(update={"adapters": (adapter,)})
    for live, wanted in ((alone, both), (both, alone)):
        again = chosen(wanted, {0: process_of(live, ready=True)}, free=64)
        assert again == HostContext(tokens=16_384, chosen="default")


def test_another_model_host_or_setting_gets_a_new_context() -> None:
    old = process_of(hosted(), ready=True)
    assert chosen(hosted(source=OTHER), {0: old}) == HostContext(tokens=32_768, chosen="default")
    assert chosen(hosted(host="other"), {0: old}) == HostContext(tokens=32_768, chosen="default")
    was_set = process_of(hosted(LlamaCpp(context_size=8_192)), ready=True)
    assert chosen(hosted(), {0: was_set}) == HostContext(tokens=32_768, chosen="default")


def test_a_process_that_was_made_before_the_header_was_known_gets_its_context_until_it_serves() -> None:
    early = hosted(contexts=(PENDING,))
    assert chosen(hosted(), {0: process_of(early, phase="Downloading")}) == HostContext(tokens=32_768, chosen="default")
    assert chosen(hosted(), {0: process_of(early, ready=True)}) == PENDING


def test_a_process_that_waits_for_memory_gets_a_shorter_context_never_a_longer_one() -> None:
    waiting = process_of(hosted(contexts=(HostContext(tokens=16_384, chosen="default"),)), reason="InsufficientMemory")
    assert chosen(hosted(), {0: waiting}, free=6.8) == HostContext(tokens=8_192, chosen="default")
    assert chosen(hosted(), {0: waiting}, free=64) == HostContext(tokens=16_384, chosen="default")


def test_a_preview_names_the_context_that_a_replica_would_get() -> None:
    settled = with_contexts(hosted(), {}, lambda *_: HostRoom(64 * GIB))
    (note,) = context_notes(settled, {})
    assert "replica 0 gets 32,768 tokens of context on host `mac`" in note
    assert context_notes(settled, {0: process_of(settled)}) == []
    assert context_notes(hosted(), {}) == []


def test_the_registry_counts_the_memory_at_the_context_for_the_next_service() -> None:
    registry = HostRegistry(later=lambda *_: None)
    status = {"allocatable": {"memory": 16 * GIB}, "runtimes": {"llama-server": "b1"}}
    registry.host_changed(
        None, trim_hosts.host({"metadata": {"name": "mac", "labels": {}}, "spec": {}, "status": status})
    )
    registry.lease_changed(None, {"host": "mac", "renewed": "1", "holder": "agent", "duration_s": 40, "fenced": ""})

    def placed(name: str) -> DesiredService:
        asked = hosted(host=None).model_copy(update={"key": ServiceKey("llmkube", "ns", name)})
        found, _ = registry.place(asked, processes={})
        return found

    first, second = placed("a"), placed("b")
    assert first.host_placement is not None and second.host_placement is not None
    sums = [memory_at_context(each, 0) or 0 for each in (first, second)]
    assert first.host_placement.contexts[0] == HostContext(tokens=32_768, chosen="default")
    assert sum(sums) <= 16 * GIB and second.host_placement.contexts[0] == HostContext(tokens=8_192, chosen="default")
    (_, _, reserved, _) = registry.allocations.hosts()[0]
    assert reserved == sum(sums)
    registry.place(first, processes={})
    assert registry.allocations.hosts()[0][2] == reserved, "another pass changes no reservation"
