"""The program of the loop registers a fleet as the SDK's program does: the same requests, state and previews.

Both run under the real CLI, with the real provider and a real API server. `tests/unit/program/test_fleet_registrars.py`
compares more requests without an engine.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

from automation.engine.fleet_run import FleetProgram, run_fleet
from automation.engine.port import Batch, BatchOutcome, Stack
from automation.engine.pulumi_engine import PulumiEngine
from components import naming
from components.providers.kubernetes import KubernetesProvider
from components.providers.plugin_server import EmbeddedPlugins
from components.rendered import RenderedService
from kubeapi.client import KubeClient
from program.desired.keys import ServiceKey
from tests.fakes.rendered import BAD_LIMIT, BAD_PORT, key, service
from tests.support.controlplane import Api
from tests.support.recorded_monitor import Recorded, in_front_of_the_engine
from tests.support.sdk_programs import run_fleet_by_sdk

PROGRAMS: dict[str, FleetProgram] = {"monitor": run_fleet, "sdk": run_fleet_by_sdk}
CHANGING = (
    *("created", "modified", "startTime", "endTime", "time"),
    *("uid", "resourceVersion", "creationTimestamp", "clusterIP", "clusterIPs"),
)
"""Fields that differ between two runs of the same program."""


@dataclass
class Side:
    """An engine with one of the programs, and a namespace."""

    program: FleetProgram
    namespace: str
    engine: PulumiEngine = field(init=False)
    runs: list[Recorded] = field(default_factory=list)

    def named(self, value: Any) -> Any:
        """Return JSON without the namespace's name and without fields that differ between two runs."""
        return _steady(json.loads(json.dumps(value).replace(self.namespace, "here")))

    def requests(self) -> Any:
        """Return the requests of the last run."""
        return self.named([self.runs[-1].registrations(), self.runs[-1].outputs()])

    def state(self) -> Any:
        """Return the resources of the state, by URN. Their order is that in which steps ended."""
        export = self.engine.export(Stack(self.namespace)).get("deployment", {})
        resources = [self.named(each) for each in export.get("resources", [])]
        return {each["urn"]: {k: v for k, v in each.items() if k not in _PROVIDERS} for each in resources}


_PROVIDERS = ("provider", "id", "stackTrace", "sourcePosition")
"""The default provider has a random id, to which each object refers. The SDK registers a new process's first stack with
a Python stack."""


def _steady(value: Any) -> Any:
    if isinstance(value, dict):
        return {name: _steady(_field(name, item)) for name, item in value.items() if name not in CHANGING}
    if isinstance(value, list):
        return [_steady(item) for item in value]
    if isinstance(value, str) and value.startswith(("{", "[")):
        try:
            return _steady(json.loads(value))
        except ValueError:
            return value
    return value


def _field(name: str, value: Any) -> Any:
    """Return the value of a field in the form that is compared.

    An applied hash counts the namespace, which differs between the two sides. The SDK's dependencies have no order.
    """
    if name == naming.ANNOTATION_APPLIED_HASH:
        return re.sub("^[0-9a-f]{16}", "hash", value)
    return sorted(value) if name == "dependencies" and value else value


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


def batches(namespace: str) -> Iterator[tuple[str, Batch]]:
    """Yield the command and the batch of each run, one after the other in one stack."""

    def of(name: str, **options: Any) -> RenderedService:
        return service(name, namespace=namespace, **options)

    def here(*services: RenderedService, remove: tuple[ServiceKey, ...] = ()) -> Batch:
        return Batch(Stack(namespace), services, remove)

    whole = (of("a", autoscaled=True, cached=True), of("b", cached=True), of("c"))
    yield "preview", here(*whole)
    yield "up", here(*whole)
    yield "up", here(*whole)
    changed = of("a", replicas=2, autoscaled=True, cached=True)
    yield "preview", here(changed, of("new"), remove=(key("b", namespace),))
    refused = of("limit", autoscaled=True, max_replicas=BAD_LIMIT, cached=True)
    yield "up", here(changed, refused, of("port", port=BAD_PORT), remove=(key("b", namespace),))
    yield "up", here(of("a", replicas=2, cached=True), of("limit", cached=True))


def outcomes(side: Side, outcome: BatchOutcome) -> Any:
    """Return what an outcome says about each service and the shared objects."""
    services = {
        str(each.key): (each.ok, sorted(map(repr, each.changes)), repr(each.error), str(each.error))
        for each in outcome.services.values()
    }
    return side.named([services, sorted(map(repr, outcome.shared))])


def test_both_programs_make_the_same_requests_state_and_previews(sides: tuple[Side, Side]) -> None:
    runs = zip(*(batches(side.namespace) for side in sides), strict=True)
    for number, steps in enumerate(runs):
        found = []
        for side, (command, batch) in zip(sides, steps, strict=True):
            run = side.engine.preview if command == "preview" else side.engine.up
            found.append((outcomes(side, run(batch)), side.requests(), side.state()))
        (outcome, requests, state), (of_sdk, requests_of_sdk, state_of_sdk) = found
        assert outcome == of_sdk, number
        assert requests == requests_of_sdk, number
        assert state == state_of_sdk, number
        assert len(requests[0]) > 3 and len(sides[0].runs) == number + 1
    assert len(state) > 10


def test_a_stack_of_one_program_has_nothing_to_change_for_the_other(sides: tuple[Side, Side]) -> None:
    """A loop takes over the stacks of an earlier version, which registered by the SDK."""
    for side, other in zip(sides, (run_fleet_by_sdk, run_fleet), strict=True):
        batch = Batch(Stack(side.namespace), (service("a", namespace=side.namespace, autoscaled=True, cached=True),))
        for _ in range(2):  # the second run refreshes: a state then has the object as it was read, not as it was made
            side.engine.up(batch)
        before = side.state()
        side.program = other
        outcome = side.engine.up(batch)
        assert all(each.ok for each in outcome.services.values())
        assert {change.op for each in outcome.services.values() for change in each.changes} <= {"same"}
        assert side.state() == before
        assert len(side.runs) == 3


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
