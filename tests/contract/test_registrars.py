"""The program of the loop and the SDK's program work on the same stacks, and report the same refusals.

Both run under the real CLI, with the real provider and a real API server. `tests/unit/program/test_fleet_registrars.py`
compares requests without an engine.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

from automation.engine.fleet_run import FleetProgram, run_fleet
from automation.engine.port import Batch, BatchOutcome, Stack
from automation.engine.pulumi_engine import PulumiEngine
from components.providers.kubernetes import KubernetesProvider
from components.providers.plugin_server import EmbeddedPlugins
from kubeapi.client import KubeClient
from tests.fakes.rendered import BAD_PORT, service
from tests.support.controlplane import Api
from tests.support.recorded_monitor import Recorded, in_front_of_the_engine
from tests.support.sdk_programs import run_fleet_by_sdk

PROGRAMS: dict[str, FleetProgram] = {"monitor": run_fleet, "sdk": run_fleet_by_sdk}


@dataclass
class Side:
    """An engine with one of the programs, and a namespace."""

    program: FleetProgram
    namespace: str
    engine: PulumiEngine = field(init=False)
    runs: list[Recorded] = field(default_factory=list)

    def named(self, value: Any) -> Any:
        """Return JSON without the namespace's name."""
        return json.loads(json.dumps(value).replace(self.namespace, "here"))


@pytest.fixture
def sides(pulumi_cli: Path, kubeconfig: Path, api: Api, tmp_path: Path) -> Iterator[tuple[Side, Side]]:
    client = KubeClient.from_kubeconfig(str(kubeconfig))
    made: list[Side] = []
    with (
        EmbeddedPlugins({"kubernetes": KubernetesProvider(client)}) as plugins,
        api.namespace(kept=True) as one,
        api.namespace(kept=True) as other,
    ):
        for (name, program), namespace in zip(PROGRAMS.items(), (one, other), strict=True):
            side = Side(program, namespace)
            side.engine = _engine(side, plugins, pulumi_cli, tmp_path / name)
            made.append(side)
        yield made[0], made[1]
        for side in made:
            side.engine.close()
    client.close()


def _engine(side: Side, plugins: EmbeddedPlugins, pulumi: Path, folder: Path) -> PulumiEngine:
    def recorded(services: Any, request: Any) -> Any:
        side.runs.append(Recorded())
        return in_front_of_the_engine(side.program, side.runs[-1])(services, request)

    return PulumiEngine(
        provider_port=plugins.ports["kubernetes"],
        state_url=f"file://{folder}/state",
        work_root=folder / "work",
        pulumi=pulumi,
        program=recorded,
    )


def outcomes(side: Side, outcome: BatchOutcome) -> Any:
    """Return what an outcome says about each service and the shared objects."""
    services = {
        str(each.key): (each.ok, sorted(map(repr, each.changes)), repr(each.error), str(each.error))
        for each in outcome.services.values()
    }
    return side.named([services, sorted(map(repr, outcome.shared))])


def test_a_stack_of_one_program_has_nothing_to_change_for_the_other(sides: tuple[Side, Side]) -> None:
    """A loop takes over the stacks of an earlier version, which registered by the SDK."""
    for side, other in zip(sides, (run_fleet_by_sdk, run_fleet), strict=True):
        batch = Batch(Stack(side.namespace), (service("a", namespace=side.namespace, autoscaled=True, cached=True),))
        side.engine.up(batch)
        side.program = other
        outcome = side.engine.up(batch)
        assert all(each.ok for each in outcome.services.values())
        assert {change.op for each in outcome.services.values() for change in each.changes} <= {"same"}
        assert len(side.runs) == 2


def test_a_preview_that_the_api_server_refuses_has_the_same_outcome(sides: tuple[Side, Side]) -> None:
    """The engine ends a failed preview at once, while programs still register."""
    found = []
    for side in sides:
        services = [service(f"s{number}", namespace=side.namespace, cached=True) for number in range(10)]
        bad = service("bad", namespace=side.namespace, port=BAD_PORT)
        outcome = side.engine.preview(Batch(Stack(side.namespace), (bad, *services)))
        found.append(outcomes(side, outcome)[0][str(side.named(str(bad.key)))])
    assert found[0] == found[1]
    assert "spec.ports[0].port" in found[0][3]
