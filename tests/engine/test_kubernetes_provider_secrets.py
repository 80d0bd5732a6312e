"""Secrets: never in plain text in state, output or messages, and correct in the cluster."""

from __future__ import annotations

import base64
from collections.abc import Callable
from typing import Any

import pulumi
import pulumi_kubernetes as k8s

from kubeapi.client import KubeClient
from kubeapi.kinds import CONFIG_MAPS, DEPLOYMENTS, SECRETS
from tests.engine.stacks import Stack
from tests.support.wire.stack import WireStack

PASSWORD = "hunter2-is-the-password"
ENCODED = base64.b64encode(PASSWORD.encode()).decode()


def secret(namespace: str, *, text: dict[str, str] | None = None, data: dict[str, str] | None = None) -> Callable:
    def program() -> None:
        made = k8s.core.v1.Secret("key", metadata={"name": "key", "namespace": namespace}, string_data=text, data=data)
        pulumi.export("data", made.data)

    return program


def no_plaintext(stack: Stack | WireStack, *texts: str) -> None:
    for kept in (PASSWORD, ENCODED, *texts):
        assert kept not in stack.files()


def test_a_secret_is_written_to_the_cluster_and_encrypted_in_the_state(
    user_stack: Stack, client: KubeClient, namespace: str
) -> None:
    run = user_stack.up(secret(namespace, text={"password": PASSWORD}))
    assert client.get(SECRETS, namespace, "key")["data"] == {"password": ENCODED}
    assert run.outputs["data"] == {"password": ENCODED}  # the Automation API decrypts the outputs
    assert ENCODED not in run.text
    assert "[secret]" in run.text
    no_plaintext(user_stack)
    user_stack.refresh()
    no_plaintext(user_stack)


def test_a_secret_that_the_program_did_not_mark_is_encrypted_all_the_same(
    stack: WireStack, client: KubeClient, namespace: str
) -> None:
    inputs = {"metadata": {"name": "key", "namespace": namespace}, "stringData": {"password": PASSWORD}}
    stack.up(lambda: pulumi.CustomResource("kubernetes:core/v1:Secret", "key", inputs) and None)
    assert client.get(SECRETS, namespace, "key")["data"] == {"password": ENCODED}
    no_plaintext(stack)


def test_a_preview_of_a_secret_shows_no_value(cli_stack: Stack, namespace: str) -> None:
    cli_stack.up(secret(namespace, text={"password": "before-the-change"}))
    run = cli_stack.preview(secret(namespace, text={"password": PASSWORD}), diff=True)
    assert run.detailed("key")
    for text in (PASSWORD, ENCODED, "before-the-change"):
        assert text not in run.text


def test_a_key_taken_out_of_string_data_goes_from_the_cluster(
    stack: WireStack, client: KubeClient, namespace: str
) -> None:
    stack.up(secret(namespace, text={"a": "1", "b": "2"}))
    stack.up(secret(namespace, text={"a": "1"}))
    assert set(client.get(SECRETS, namespace, "key")["data"]) == {"a"}


def test_a_secret_edited_by_hand_is_put_back(stack: WireStack, client: KubeClient, namespace: str) -> None:
    program = secret(namespace, text={"password": PASSWORD})
    stack.up(program)
    assert stack.up(program).steps() == {"key": "same"}
    client.patch(SECRETS, namespace, "key", {"data": {"password": "AAAA"}}, field_manager="kubectl-edit")
    assert stack.up(program).steps() == {"key": "update"}
    assert client.get(SECRETS, namespace, "key")["data"] == {"password": ENCODED}


def test_a_secret_edited_by_hand_is_read_by_a_refresh(stack: WireStack, client: KubeClient, namespace: str) -> None:
    program = secret(namespace, text={"password": PASSWORD, "user": "me"})
    stack.up(program)
    edited = base64.b64encode(b"edited-by-hand").decode()
    client.patch(SECRETS, namespace, "key", {"data": {"password": edited}}, field_manager="kubectl-edit")
    stack.refresh()
    no_plaintext(stack, edited)
    assert stack.up(program).steps() == {"key": "update"}
    assert client.get(SECRETS, namespace, "key")["data"]["password"] == ENCODED


def test_a_secret_value_in_any_object_stays_secret(stack: WireStack, client: KubeClient, namespace: str) -> None:
    def program() -> None:
        container: dict[str, Any] = {
            "name": "web",
            "image": "nginx:1",
            "env": [{"name": "OPEN", "value": "seen"}, {"name": "KEY", "value": pulumi.Output.secret(PASSWORD)}],
        }
        k8s.apps.v1.Deployment(
            "web",
            metadata={"name": "web", "namespace": namespace},
            spec={
                "selector": {"matchLabels": {"app": "web"}},
                "template": {"metadata": {"labels": {"app": "web"}}, "spec": {"containers": [container]}},
            },
        )

    stack.up(program)
    env = client.get(DEPLOYMENTS, namespace, "web")["spec"]["template"]["spec"]["containers"][0]["env"]
    assert env[1] == {"name": "KEY", "value": PASSWORD}
    no_plaintext(stack)
    stack.refresh()
    no_plaintext(stack)
    assert stack.up(program).steps() == {"web": "same"}


def test_the_copy_that_kubectl_keeps_of_a_secret_stays_out_of_the_state(
    stack: WireStack, client: KubeClient, namespace: str
) -> None:
    stack.up(secret(namespace, data={"password": ENCODED}))
    note = {"metadata": {"annotations": {"kubectl.kubernetes.io/last-applied-configuration": PASSWORD}}}
    client.patch(SECRETS, namespace, "key", note, field_manager="kubectl-client-side-apply")
    stack.refresh()
    no_plaintext(stack)


def test_a_refusal_does_not_quote_a_secret(stack: WireStack, client: KubeClient, namespace: str) -> None:
    def program() -> None:
        k8s.core.v1.Service(
            "svc",
            metadata={"name": "svc", "namespace": namespace},
            spec={"ports": [{"port": 80}], "sessionAffinity": pulumi.Output.secret(PASSWORD)},
        )

    said = stack.fails(program)
    assert "spec.sessionAffinity" in said
    assert "[secret]" in said
    assert PASSWORD not in said


def test_a_secret_passed_on_to_another_object_stays_secret(
    stack: WireStack, client: KubeClient, namespace: str
) -> None:
    def program() -> None:
        made = k8s.core.v1.Secret(
            "key", metadata={"name": "key", "namespace": namespace}, string_data={"password": PASSWORD}
        )
        k8s.core.v1.ConfigMap(
            "copy",
            metadata={"name": "copy", "namespace": namespace},
            data={"leak": made.data.apply(lambda data: data["password"]), "open": "seen"},
        )

    stack.up(program)
    assert client.get(CONFIG_MAPS, namespace, "copy")["data"]["leak"] == ENCODED
    no_plaintext(stack)
