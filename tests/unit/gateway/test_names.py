"""The names by which clients find models."""

from __future__ import annotations

import pytest

from gateway.names import Match, Model, Names, NoMatch, ServiceName


def model(name: str, namespace: str = "prod", **fields: object) -> Model:
    return Model(ServiceName(namespace, name), **fields)  # type: ignore[arg-type]


CHAT = model("chat", engine_names=("org/chat-8b",), adapters=("sql", "legal"), aliases=("gpt-4o", "llama3:8b"))
CODE = model("code", engine_names=("/models/code.gguf",))
TWIN = model("code", "test")


@pytest.mark.parametrize(
    ("name", "service", "engine_name", "adapter"),
    [
        ("gpt-4o", CHAT, "org/chat-8b", ""),
        ("llama3:8b", CHAT, "org/chat-8b", ""),
        ("org/chat-8b", CHAT, "org/chat-8b", ""),
        ("chat", CHAT, "org/chat-8b", ""),
        ("prod/chat", CHAT, "org/chat-8b", ""),
        ("sql", CHAT, "sql", "sql"),
        ("chat:sql", CHAT, "sql", "sql"),
        ("llama3:8b:legal", CHAT, "legal", "legal"),
        ("prod/code", CODE, "/models/code.gguf", ""),
        ("test/code", TWIN, "", ""),
    ],
)
def test_a_name_means_one_model(name: str, service: Model, engine_name: str, adapter: str) -> None:
    assert Names.of([CHAT, CODE, TWIN]).find(name) == Match(service, engine_name, adapter)


def test_a_name_of_two_services_means_none_and_both_are_said() -> None:
    found = Names.of([TWIN, CHAT, CODE]).find("code")
    assert isinstance(found, NoMatch)
    assert found.owners == (ServiceName("prod", "code"), ServiceName("test", "code"))


def test_an_alias_wins_over_the_name_of_a_service() -> None:
    other = model("other", aliases=("chat",))
    found = Names.of([CHAT, other]).find("chat")
    assert isinstance(found, Match)
    assert found.model == other


@pytest.mark.parametrize("name", ["/models/code.gguf", "chat:nothing", "", ":", "code:", "prod/"])
def test_what_no_model_is_called_means_none(name: str) -> None:
    found = Names.of([CHAT, CODE]).find(name)
    assert isinstance(found, NoMatch)
    assert not found.owners


def test_similar_names_are_said() -> None:
    found = Names.of([CHAT, CODE]).find("chta")
    assert isinstance(found, NoMatch)
    assert found.near[0] == "chat"


def test_each_name_is_listed_once_and_those_of_two_services_are_not() -> None:
    names = [each.name for each in Names.of([CHAT, CODE, TWIN]).listed]
    of_chat = ["chat", "gpt-4o", "llama3:8b", "org/chat-8b", "chat:sql", "chat:legal", "sql", "legal"]
    assert names == [*of_chat, "prod/code", "test/code"]


def test_every_listed_name_means_what_it_is_listed_for() -> None:
    names = Names.of([CHAT, CODE, TWIN, model("sql"), model("other", aliases=("chat",))])
    for each in names.listed:
        assert names.find(each.name) == each.match


@pytest.mark.parametrize("name", ["chat", "prod/chat", "gpt-4o", "sql", "chat:sql", "chat:later", "code", "code:sql"])
def test_the_names_of_services_and_of_their_adapters_are_claimed(name: str) -> None:
    assert Names.of([CHAT, CODE, TWIN]).claims(name)


@pytest.mark.parametrize("name", ["other", "other:sql", ":", "llama3"])
def test_other_names_are_free(name: str) -> None:
    assert not Names.of([CHAT, CODE, TWIN]).claims(name)
