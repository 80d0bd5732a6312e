"""Which service a name means: words for kinds, names of several services, kinds that the cluster does not have."""

from __future__ import annotations

from typing import Any

import pytest
import typer

from automation.cli.service_lookup import find_service
from kubeapi import kinds
from kubeapi.errors import NotFound
from kubeapi.json_types import Json
from kubeapi.kinds import Kind


class Client:
    """Lists objects of the kinds that it is given, by name as the API server does."""

    def __init__(self, *served: Kind, **names: Kind) -> None:
        self._served = {*served, *names.values()}
        self._objects = [(kind, name) for name, kind in names.items()]

    def list(self, kind: Kind, namespace: str | None = None, *, field_selector: str | None = None) -> Json:
        if kind not in self._served:
            raise NotFound(404, "NotFound", "the server could not find the requested resource")
        wanted = (field_selector or "").removeprefix("metadata.name=")
        found = [
            {"apiVersion": each.api_version, "kind": each.kind, "metadata": {"name": wanted, "namespace": "prod"}}
            for each, name in self._objects
            if each is kind and name.rstrip("_") == wanted
        ]
        return {"items": found}


def complaint(capsys: pytest.CaptureFixture[str], client: Any, name: str) -> str:
    with pytest.raises(typer.Exit):
        find_service(client, None, name)
    return capsys.readouterr().err


def test_a_name_means_the_only_one_that_has_it() -> None:
    client: Any = Client(kinds.INFERENCE_SERVICES, chat=kinds.PLAYGROUNDS)
    for name in ("chat", "playground/chat", "pl/chat", "llmaz/chat"):
        assert find_service(client, None, name)["kind"] == "Playground"


def test_a_name_of_several_kinds_is_asked_for_again(capsys: pytest.CaptureFixture[str]) -> None:
    client: Any = Client(chat=kinds.PLAYGROUNDS, chat_=kinds.LLM_SERVICES)
    said = complaint(capsys, client, "chat")
    assert "say llminferenceservice/chat or playground/chat" in said
    assert find_service(client, None, "llmisvc/chat")["kind"] == "LLMInferenceService"


@pytest.mark.parametrize(
    ("name", "said", "command"),
    [
        ("chat", "has no CRD for InferenceServices", "`herdsman crds | kubectl apply --server-side -f -`"),
        ("playground/chat", "has no CRD for Playgrounds", "`herdsman crds --dialect llmaz | kubectl create -f -`"),
        ("llmaz-service/x", "has no CRD for llmaz Services", "`herdsman crds --dialect llmaz | kubectl create -f -`"),
        ("llmisvc/x", "has no CRD for LLMInferenceServices", "`herdsman crds --dialect kserve | kubectl create -f -`"),
    ],
)
def test_a_kind_that_the_cluster_does_not_know_is_named_with_what_brings_it(
    capsys: pytest.CaptureFixture[str], name: str, said: str, command: str
) -> None:
    told = complaint(capsys, Client(), name)
    assert said in told and command in told


def test_a_word_that_is_no_kind_and_a_name_that_nobody_has(capsys: pytest.CaptureFixture[str]) -> None:
    client: Any = Client(kinds.INFERENCE_SERVICES, kinds.PLAYGROUNDS)
    assert "is not a kind of service" in complaint(capsys, client, "deployment/chat")
    assert "no Playground `chat`" in complaint(capsys, client, "playground/chat")
    assert "`herdsman get` shows the services of all kinds" in complaint(capsys, client, "chat")
