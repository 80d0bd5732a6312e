"""Which changes by other clients `pulumi refresh` and `preview` see in a fleet (docs/how-to/static-fleets.md)."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from kubeapi import kinds
from kubeapi.client import KubeClient
from tests.engine.test_static_fleet import Fleet, service
from tests.support.wire.stack import WireStack

DEPLOYMENT = "llmkube/chat/deployment"


@pytest.fixture
def fleet(tmp_path: Path, stack: WireStack, namespace: str) -> Fleet:
    made = Fleet(tmp_path / "project", stack, namespace)
    chat = service("chat", resources={"memory": "2Gi"}, env=[{"name": "A", "value": "1"}])
    made.write(chat)
    made.stack.up(made.program)
    return made


def container(client: KubeClient, namespace: str) -> dict[str, Any]:
    found: dict[str, Any] = client.get(kinds.DEPLOYMENTS, namespace, "chat")["spec"]["template"]["spec"]["containers"][
        0
    ]
    return found


def edit(client: KubeClient, namespace: str, **fields: Any) -> None:
    """Change the container as `kubectl edit` does."""
    name = container(client, namespace)["name"]
    client.request(
        "PATCH",
        kinds.DEPLOYMENTS.path(namespace, "chat"),
        query={"fieldManager": "kubectl-edit"},
        body={"spec": {"template": {"spec": {"containers": [{"name": name, **fields}]}}}},
        content_type="application/strategic-merge-patch+json",
    )


def remembered(fleet: Fleet) -> Any:
    """The environment variables in the state's inputs, with which the next `up` compares the files."""
    inputs = fleet.stack.state()[DEPLOYMENT]["inputs"]
    return inputs["spec"]["template"]["spec"]["containers"][0]["env"]


def test_a_field_of_the_fleet_that_others_change_is_seen_and_put_back(
    fleet: Fleet, client: KubeClient, namespace: str
) -> None:
    edit(client, namespace, env=[{"name": "A", "value": "2"}])
    assert fleet.stack.preview(fleet.program).steps("update").keys() == {DEPLOYMENT}
    fleet.stack.refresh()
    assert remembered(fleet) == [{"name": "A", "value": "2"}]
    again = fleet.stack.up(fleet.program)
    assert again.steps("update").keys() == {DEPLOYMENT}
    assert container(client, namespace)["env"] == [{"name": "A", "value": "1"}]


def test_what_others_add_is_not_seen_and_stays(fleet: Fleet, client: KubeClient, namespace: str) -> None:
    edit(client, namespace, env=[{"name": "B", "value": "2"}], resources={"limits": {"cpu": "4"}})
    assert set(fleet.stack.preview(fleet.program).steps().values()) == {"same"}
    fleet.stack.refresh()
    assert remembered(fleet) == [{"name": "A", "value": "1"}]
    assert set(fleet.stack.up(fleet.program).steps().values()) == {"same"}
    live = container(client, namespace)
    assert {each["name"] for each in live["env"]} == {"A", "B"}
    assert live["resources"]["limits"]["cpu"] == "4"
    outputs = fleet.stack.state()[DEPLOYMENT]["outputs"]
    assert outputs["spec"]["template"]["spec"]["containers"][0]["env"] == live["env"], "the outputs tell it"
