"""The output of `pulumi preview --diff` and `--json` for each kind of change, and for changes by other clients.

The CLI takes old values from the state and new ones from the program, so only the kind of a change can show that the
cluster differs from both.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

import pulumi
import pytest

from kubeapi.client import KubeClient
from kubeapi.kinds import CONFIG_MAPS, DEPLOYMENTS, SERVICES
from tests.engine.stacks import Program, Stack

CONTAINER = {"name": "web", "image": "nginx:1", "env": [{"name": "A", "value": "1"}, {"name": "B", "value": "2"}]}


def web(namespace: str, **options: Any) -> Callable[[], None]:
    def program() -> None:
        labels = {"app": options.get("selector", "web")}
        pulumi.CustomResource(
            "kubernetes:apps/v1:Deployment",
            "web",
            {
                "metadata": {"name": "web", "namespace": namespace, "labels": {"app": "web", "tier": "front"}},
                "spec": {
                    "replicas": 2,
                    "selector": {"matchLabels": labels},
                    "template": {"metadata": {"labels": labels}, "spec": {"containers": [CONTAINER]}},
                },
            },
        )

    return program


def settings(namespace: str, data: dict[str, str], **fields: Any) -> Callable[[], None]:
    def program() -> None:
        inputs = {"metadata": {"name": "settings", "namespace": namespace}, "data": data, **fields}
        pulumi.CustomResource("kubernetes:core/v1:ConfigMap", "settings", inputs)

    return program


def steps(stack: Stack, program: Program, *options: str) -> dict[str, dict[str, Any]]:
    """Return the steps of `preview --json` by logical name; of a replacement, the step with its reason."""
    found = json.loads(stack.cli(program, "preview", "--json", *options))["steps"]
    return {step["urn"].rpartition("::")[2]: step for step in found if step.get("detailedDiff")}


def kinds(step: dict[str, Any]) -> dict[str, tuple[str, bool]]:
    """Return the kind of change and `inputDiff`, by path."""
    return {path: (each["kind"], each["inputDiff"]) for path, each in step["detailedDiff"].items()}


def lines(text: str) -> set[str]:
    return {" ".join(line.split()) for line in text.splitlines()}


def edit(client: KubeClient, namespace: str) -> None:
    """Change, delete and shorten fields of the program, as a user does with kubectl."""
    client.patch(
        DEPLOYMENTS,
        namespace,
        "web",
        [
            {"op": "remove", "path": "/metadata/labels/app"},
            {"op": "replace", "path": "/metadata/labels/tier", "value": "back"},
            {"op": "replace", "path": "/spec/replicas", "value": 5},
            {"op": "remove", "path": "/spec/template/spec/containers/0/env/1"},
        ],
        content_type="application/json-patch+json",
        field_manager="kubectl-edit",
    )


ENV = "spec.template.spec.containers[0].env[1]"


def test_drift_shows_as_what_an_update_puts_there(cli_stack: Stack, client: KubeClient, namespace: str) -> None:
    cli_stack.up(web(namespace))
    edit(client, namespace)
    text = lines(cli_stack.cli(web(namespace), "preview", "--diff"))
    assert {'+ app : "web"', '+ tier: "front"', "+ replicas: 2"} <= text
    assert any(line.startswith("+ [1]: {") for line in text)
    assert not [line for line in text if line.startswith("- ") or "=>" in line]
    (step,) = steps(cli_stack, web(namespace)).values()
    assert step["op"] == "update"
    assert kinds(step) == dict.fromkeys(
        ("metadata.labels.app", "metadata.labels.tier", "spec.replicas", ENV), ("add", False)
    )


def test_after_a_refresh_drift_shows_with_the_value_in_the_cluster(
    cli_stack: Stack, client: KubeClient, namespace: str
) -> None:
    cli_stack.up(web(namespace))
    edit(client, namespace)
    cli_stack.refresh()
    text = lines(cli_stack.cli(web(namespace), "preview", "--diff"))
    assert {'+ app : "web"', '~ tier: "back" => "front"', "~ replicas: 5 => 2"} <= text
    (step,) = steps(cli_stack, web(namespace)).values()
    assert kinds(step) == {
        "metadata.labels.app": ("add", True),
        "metadata.labels.tier": ("update", True),
        "spec.replicas": ("update", True),
        ENV: ("add", True),
    }


@pytest.mark.parametrize("run_program", [False, True])
def test_a_refresh_shows_what_others_did(
    cli_stack: Stack, client: KubeClient, namespace: str, run_program: bool
) -> None:
    cli_stack.up(web(namespace))
    edit(client, namespace)
    by_program = f"--run-program={str(run_program).lower()}"
    text = lines(cli_stack.cli(web(namespace), "refresh", "--preview-only", "--diff", by_program))
    assert {'- app : "web"', '~ tier: "front" => "back"', "~ replicas: 2 => 5"} <= text
    assert any(line.startswith("- [1]: {") for line in text)


@pytest.mark.parametrize("run_program", [False, True])
def test_a_preview_that_refreshes_first_shows_both(
    cli_stack: Stack, client: KubeClient, namespace: str, run_program: bool
) -> None:
    cli_stack.up(web(namespace))
    edit(client, namespace)
    by_program = f"--run-program={str(run_program).lower()}"
    (step,) = steps(cli_stack, web(namespace), "--refresh", by_program).values()
    assert step["op"] == "update"
    assert kinds(step)["metadata.labels.app"] == ("add", True)
    assert kinds(step)["spec.replicas"] == ("update", True)
    text = lines(cli_stack.cli(web(namespace), "preview", "--diff", "--refresh", by_program))
    assert {'+ app : "web"', "~ replicas: 5 => 2"} <= text


def test_an_object_that_was_deleted_shows_as_made_again(cli_stack: Stack, client: KubeClient, namespace: str) -> None:
    cli_stack.up(settings(namespace, {"a": "1"}))
    client.delete(CONFIG_MAPS, namespace, "settings")
    text = cli_stack.cli(settings(namespace, {"a": "1"}), "preview", "--diff")
    assert "(replace)" in text
    assert {"+ data : {", '+ a: "1"'} <= lines(text)
    assert "uid" not in text
    (step,) = steps(cli_stack, settings(namespace, {"a": "1"})).values()
    assert kinds(step) == dict.fromkeys(("apiVersion", "kind", "metadata", "data"), ("add-replace", False))
    # A simultaneous change of the program is not listed by itself: the step shows the whole new object.
    (step,) = steps(cli_stack, settings(namespace, {"b": "1"})).values()
    assert kinds(step)["data"] == ("add-replace", False)
    assert "data.b" not in kinds(step)


def test_an_object_that_was_made_anew_shows_as_written_anew(
    cli_stack: Stack, client: KubeClient, namespace: str
) -> None:
    cli_stack.up(settings(namespace, {"a": "1"}))
    before = client.get(CONFIG_MAPS, namespace, "settings")
    client.delete(CONFIG_MAPS, namespace, "settings")
    ours = {"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": "settings", "namespace": namespace}}
    client.apply(CONFIG_MAPS, namespace, {**ours, "data": {"a": "1"}}, field_manager="herdsman")
    assert client.get(CONFIG_MAPS, namespace, "settings")["metadata"]["uid"] != before["metadata"]["uid"]
    text = cli_stack.cli(settings(namespace, {"a": "1"}), "preview", "--diff")
    assert "(update)" in text
    assert "uid" not in text
    (step,) = steps(cli_stack, settings(namespace, {"a": "1"})).values()
    assert kinds(step) == dict.fromkeys(("apiVersion", "kind", "metadata", "data"), ("add", False))


def test_changes_of_the_program_show_with_both_values(cli_stack: Stack, namespace: str) -> None:
    cli_stack.up(settings(namespace, {"changed": "1", "gone": "1"}))
    after = settings(namespace, {"changed": "2", "new": "1"})
    text = lines(cli_stack.cli(after, "preview", "--diff"))
    assert {'~ changed: "1" => "2"', '+ new : "1"', '- gone : "1"'} <= text
    (step,) = steps(cli_stack, after).values()
    assert kinds(step) == {"data.changed": ("update", True), "data.new": ("add", True), "data.gone": ("delete", True)}


def service(namespace: str, **spec: Any) -> Callable[[], None]:
    def program() -> None:
        inputs = {"metadata": {"name": "web", "namespace": namespace}, "spec": {"ports": [{"port": 80}], **spec}}
        pulumi.CustomResource("kubernetes:core/v1:Service", "service", inputs)

    return program


def test_what_takes_a_new_object_shows_as_a_replacement(cli_stack: Stack, client: KubeClient, namespace: str) -> None:
    def program(selector: str, immutable: dict[str, Any], **spec: Any) -> Callable[[], None]:
        def run() -> None:
            web(namespace, selector=selector)()
            settings(namespace, {"a": "1"}, **immutable)()
            service(namespace, **spec)()

        return run

    cli_stack.up(program("one", {"immutable": True}))
    head, _, last = client.get(SERVICES, namespace, "web")["spec"]["clusterIP"].rpartition(".")
    address = f"{head}.{(int(last) + 7) % 250 + 1}"
    after = program("two", {}, clusterIP=address)
    found = steps(cli_stack, after)
    assert kinds(found["web"]) == {
        "spec.selector.matchLabels.app": ("update-replace", True),
        "spec.template.metadata.labels.app": ("update", True),
    }
    assert kinds(found["settings"]) == {"immutable": ("delete-replace", True)}
    assert kinds(found["service"]) == {"spec.clusterIP": ("add-replace", True)}
    text = lines(cli_stack.cli(after, "preview", "--diff"))
    assert {'~ app: "one" => "two"', "- immutable: true", f'+ clusterIP: "{address}"'} <= text
