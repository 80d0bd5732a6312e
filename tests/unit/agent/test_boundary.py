"""An agent starts only what the owners of its host allow, whoever wrote the plan."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from agent.contract import FilePlan, ProcessPlan
from agent.server.boundary import Boundary
from agent.sources.errors import SourceRefused
from agent.sources.source_policy import SourcePolicy
from program.runtimes.host_rules import allowance_of
from tests.support.supervising import Supervised, server_plan, supervised

KEY = "prod/tiny"
HARMLESS = ProcessPlan(
    host="h", service="s", service_name="s", argv=("llama-server", "--host", "{host}", "--port", "{port}")
)
SHELL = ("llama-server", "--host", "{host}", "--port", "{port}", "--tools", "all")


@pytest.fixture
def host(tmp_path: Path) -> Iterator[Supervised]:
    with supervised(tmp_path) as made:
        yield made


def of_cluster(tmp_path: Path) -> Boundary:
    return Boundary(saved=tmp_path / "allowance.json", in_cluster=True)


def test_a_plan_with_a_refused_argument_starts_nothing(host: Supervised, tmp_path: Path) -> None:
    (host.binaries / "llama-server").write_text(f"#!/bin/sh\ntouch {tmp_path}/started\nsleep 60\n")
    (host.binaries / "llama-server").chmod(0o755)
    boundary = of_cluster(tmp_path)
    boundary.set_allowance({})
    supervisor = host.start(waits=boundary.waits, refusal=boundary.refusal)
    supervisor.put(KEY, HARMLESS.model_copy(update={"argv": SHELL}))
    told = host.because(KEY, "NotAllowed")
    assert (
        told.message
        == "host `h` does not allow flag `--tools`; the host's owner can allow it in spec.allow.flags of the Host"
    )
    assert not (tmp_path / "started").exists()
    supervisor.put("prod/variable", HARMLESS.model_copy(update={"env": {"LD_PRELOAD": "/tmp/x.so"}}))
    assert "LD_PRELOAD" in host.because("prod/variable", "NotAllowed").message
    assert not (tmp_path / "started").exists()


def test_files_of_a_refused_plan_are_not_fetched(host: Supervised, tmp_path: Path) -> None:
    boundary = of_cluster(tmp_path)
    boundary.set_allowance({})
    fetched: list[str] = []

    def fetch(plan: FilePlan, *_: object) -> Path:
        fetched.append(plan.source)
        return Path(plan.source)

    supervisor = host.start(waits=boundary.waits, refusal=boundary.refusal, fetch=fetch)
    supervisor.put(KEY, server_plan(file=FilePlan(source="https://x/y", cache_key="c", file_name="f")))
    assert "runtime `generic`" in host.because(KEY, "NotAllowed").message
    assert fetched == []


def test_a_plan_starts_once_the_owner_allows_it(host: Supervised, tmp_path: Path) -> None:
    boundary = of_cluster(tmp_path)
    boundary.set_allowance({})
    supervisor = host.start(waits=boundary.waits, refusal=boundary.refusal)
    plan = server_plan()
    supervisor.put(KEY, plan)
    host.because(KEY, "NotAllowed")
    boundary.set_allowance({"runtimes": ["generic"], "commands": [plan.argv[0]]})
    host.until(KEY, "Ready")


def test_nothing_starts_before_the_host_object_was_read(host: Supervised, tmp_path: Path) -> None:
    boundary = of_cluster(tmp_path)
    supervisor = host.start(waits=boundary.waits, refusal=boundary.refusal)
    plan = server_plan()
    supervisor.put(KEY, plan)
    assert "has not read spec.allow" in host.because(KEY, "NotAllowed").message
    boundary.set_allowance({"runtimes": ["generic"], "commands": ["*"]})
    host.until(KEY, "Ready")


def test_what_a_host_allowed_last_counts_while_nobody_answers(tmp_path: Path) -> None:
    of_cluster(tmp_path).set_allowance({"namespaces": ["prod"]})
    later = of_cluster(tmp_path)
    assert later.waits(KEY) is None
    assert later.refusal(KEY, HARMLESS) == ""
    assert "namespace `dev`" in later.refusal("dev/tiny", HARMLESS)


def test_without_a_cluster_who_has_the_token_is_the_owner(tmp_path: Path) -> None:
    assert Boundary().refusal(KEY, server_plan()) == ""
    narrowed = Boundary(own=allowance_of({"flags": ["--tools"]}))
    assert narrowed.refusal(KEY, HARMLESS.model_copy(update={"argv": SHELL})) == ""
    assert "runtime `generic`" in narrowed.refusal(KEY, server_plan())


def test_both_owners_must_allow_a_plan(tmp_path: Path) -> None:
    boundary = Boundary(own=allowance_of({}), saved=tmp_path / "a", in_cluster=True)
    boundary.set_allowance({"runtimes": ["generic"], "commands": ["*"]})
    assert "runtime `generic`" in boundary.refusal(KEY, server_plan())


def test_a_selector_looks_at_the_namespaces_labels(tmp_path: Path) -> None:
    labels = {"prod": {"team": "a"}, "dev": {"team": "b"}}
    boundary = Boundary(saved=tmp_path / "a", in_cluster=True, labels=labels.get)
    boundary.set_allowance({"namespaceSelector": {"matchLabels": {"team": "a"}}})
    assert boundary.refusal("prod/x", HARMLESS) == ""
    assert "namespace `dev`" in boundary.refusal("dev/x", HARMLESS)
    assert "namespace `gone`" in boundary.refusal("gone/x", HARMLESS)


def test_models_may_lie_in_directories_that_the_host_allows(tmp_path: Path) -> None:
    boundary = of_cluster(tmp_path)
    assert boundary.paths == ()
    boundary.set_allowance({"paths": [str(tmp_path)]})
    (tmp_path / "m.gguf").write_text("x")
    policy = SourcePolicy()
    with pytest.raises(SourceRefused):
        policy.allowed_path(str(tmp_path / "m.gguf"))
    assert policy.with_roots(boundary.paths).allowed_path(str(tmp_path / "m.gguf")) == (tmp_path / "m.gguf").resolve()
    narrowed = Boundary(own=allowance_of({"paths": ["/srv"]}), saved=tmp_path / "b", in_cluster=True)
    narrowed.set_allowance({"paths": [str(tmp_path), "/srv/models"]})
    assert narrowed.paths == ("/srv/models",)
