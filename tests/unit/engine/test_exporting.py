"""The result of `herdsman export` for the loop's stack."""

from __future__ import annotations

from typing import Any

import pytest

from automation.engine.exporting import SecretsInside, portable

STACK = "urn:pulumi:prod::herdsman"
PLAIN = f"{STACK}::pulumi:providers:kubernetes::default_4_34_2"
URN = f"{STACK}::herdsman:index:InferenceDeployment$kubernetes:v1:Service::llmkube/chat/service"


def provider(urn: str, resource_id: str, version: str) -> dict[str, Any]:
    state = {"version": version}
    return {
        "urn": urn,
        "id": resource_id,
        "type": "pulumi:providers:kubernetes",
        "custom": True,
        "inputs": state,
        "outputs": state,
    }


def service(of: str) -> dict[str, Any]:
    inputs = {
        "apiVersion": "v1",
        "kind": "Service",
        "metadata": {"name": "chat", "labels": {"a": "b"}},
        "spec": {"ports": [{"port": 80}]},
    }
    identity = {"apiVersion": "v1", "kind": "Service", "metadata": {"name": "chat", "uid": "1"}}
    return {
        "urn": URN,
        "type": "kubernetes:v1:Service",
        "custom": True,
        "inputs": inputs,
        "outputs": {**identity, "__fieldManager": "herdsman"},
        "provider": of,
    }


def exported(*resources: dict[str, Any]) -> list[dict[str, Any]]:
    deployment = {"secrets_providers": {"type": "cloud"}, "resources": list(resources)}
    made: dict[str, Any] = portable({"version": 3, "deployment": deployment})["deployment"]
    assert "secrets_providers" not in made
    found: list[dict[str, Any]] = made["resources"]
    return found


def test_an_object_is_protected_and_completed_from_its_inputs() -> None:
    _, made = exported(provider(PLAIN, "p", "4.34.2"), service(f"{PLAIN}::p"))
    assert made["protect"] is True
    inputs = service("")["inputs"]
    assert made["outputs"] == {
        **inputs,
        "metadata": {"name": "chat", "labels": {"a": "b"}, "uid": "1"},
        "__inputs": inputs,
        "__initialApiVersion": "v1",
        "__fieldManager": "herdsman",
    }


def test_components_are_protected_and_the_engines_own_resources_are_not() -> None:
    component = {"urn": f"{STACK}::herdsman:index:InferenceDeployment::llmkube/chat", "custom": False}
    component["type"] = "herdsman:index:InferenceDeployment"
    stack = {"urn": f"{STACK}::pulumi:pulumi:Stack::herdsman-prod", "type": "pulumi:pulumi:Stack"}
    first, second = exported(stack, component)
    assert "protect" not in first
    assert second["protect"] is True and "outputs" not in second


def test_sealed_values_are_not_exported() -> None:
    held = service(f"{PLAIN}::p")
    held["inputs"]["metadata"]["labels"] = {"4dabf18193072939515e22adb298388d": "1b47061264138c4ac30d75fd1eb44270"}
    with pytest.raises(SecretsInside):
        exported(held)
