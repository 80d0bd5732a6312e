"""Completions, responses and embeddings of providers that have other APIs. OpenAI's client reads the answers.

The shapes of the providers are those of their documentation. A local server stands in for Bedrock.
"""

from __future__ import annotations

import json
from typing import Any

import pytest

from gateway.routers import anthropic, completions, embeddings, responses
from gateway.routers.answers import AnswerIncomplete, Call, Message, Usage, WholeAnswer
from gateway.routers.chat import NotTranslatable
from gateway.routers.dispatching import entry
from gateway.routers.embeddings import EmbeddingForm, Family, bedrock_family, vertex_family
from gateway.routers.endpoints import CHAT, COMPLETIONS, EMBEDDINGS, RESPONSES, endpoints_of
from gateway.routers.response_form import ResponseForm
from program.desired.router import ExternalModel, Router, RouterBackend
from tests.support import sigv4
from tests.support.gateways import Front, says
from tests.support.openai_clients import client_of
from tests.support.routed_providers import Make, events, route
from tests.unit.gateway.routers.test_bedrock import ANSWER, KEYS, STREAM, backend

TITAN, COHERE = "amazon.titan-embed-text-v2:0", "eu.cohere.embed-v4:0"
TOOL = {"type": "function", "name": "look", "description": "Look", "parameters": {"type": "object"}}


def at(front: Front) -> Any:
    return client_of(f"http://127.0.0.1:{front.port}/routers/prod/r/v1")


def embedding_backend(url: str, model: str) -> RouterBackend:
    return RouterBackend("x", external=ExternalModel("bedrock", url, model, "aws"))


# --- completions ------------------------------------------------------------------------------------------------------


def test_a_completion_of_bedrock_is_one_message_of_the_user(front: Front, make_provider: Make) -> None:
    provider = make_provider(says("200 OK", json.dumps(ANSWER).encode()))
    route(front, provider, backend(provider.url), secrets={"aws": KEYS})
    found = at(front).completions.create(model="public", prompt="Once", max_tokens=9, stop=["x"])
    assert (found.object, found.model, found.choices[0].text) == ("text_completion", "public", "Hello")
    assert (found.choices[0].finish_reason, found.usage.total_tokens) == ("length", 10)
    assert json.loads(provider.seen[0][1]) == {
        "messages": [{"role": "user", "content": [{"text": "Once"}]}],
        "inferenceConfig": {"maxTokens": 9, "stopSequences": ["x"]},
    }
    assert provider.seen[0][0].split(b" ")[1].endswith(b"/converse")


def test_a_completion_of_bedrock_is_streamed(front: Front, make_provider: Make) -> None:
    provider = make_provider(events(*STREAM[:4], *STREAM[6:]))
    route(front, provider, backend(provider.url), secrets={"aws": KEYS})
    options = {"include_usage": True}
    chunks = list(at(front).completions.create(model="public", prompt="Once", stream=True, stream_options=options))
    assert "".join(each.choices[0].text for each in chunks[:-1]) == "Hello"
    assert (chunks[-1].choices, chunks[-1].usage.total_tokens) == ([], 7)
    without = list(at(front).completions.create(model="public", prompt="Once", stream=True))
    assert all(each.choices and each.usage is None for each in without), "the usage was not asked for"


@pytest.mark.parametrize(
    ("fields", "param"),
    [
        ({"prompt": ["a", "b"]}, "prompt"),
        ({"prompt": [1, 2]}, "prompt"),
        ({"prompt": ""}, "prompt"),
        ({"prompt": "a", "suffix": "b"}, "suffix"),
        ({"prompt": "a", "echo": True}, "echo"),
        ({"prompt": "a", "n": 2}, "n"),
        ({"prompt": "a", "max_tokens": 0}, "max_tokens"),
        ({"prompt": "a", "best_of": 2}, "best_of"),
        ({"prompt": "a", "logprobs": 3}, "logprobs"),
    ],
)
def test_what_a_chat_cannot_do_for_a_completion_is_refused(fields: dict[str, Any], param: str) -> None:
    with pytest.raises(NotTranslatable) as caught:
        completions.chat_values(fields, "Bedrock")
    assert caught.value.param == param


def test_a_completion_without_a_limit_has_that_of_openai() -> None:
    assert completions.chat_values({"prompt": ["a"]}, "Bedrock")["max_tokens"] == 16


# --- responses --------------------------------------------------------------------------------------------------------


def test_a_response_of_bedrock_with_tools_and_earlier_calls(front: Front, make_provider: Make) -> None:
    content = [{"text": "See"}, {"toolUse": {"toolUseId": "t2", "name": "look", "input": {"q": 2}}}]
    said = {**ANSWER, "output": {"message": {"role": "assistant", "content": content}}, "stopReason": "tool_use"}
    provider = make_provider(says("200 OK", json.dumps(said).encode()))
    route(front, provider, backend(provider.url), secrets={"aws": KEYS})
    found = at(front).responses.create(
        model="public",
        instructions="Be brief.",
        input=[
            {"role": "user", "content": [{"type": "input_text", "text": "Look"}]},
            {"type": "function_call", "call_id": "t1", "name": "look", "arguments": '{"q": 1}'},
            {"type": "function_call_output", "call_id": "t1", "output": "42"},
        ],
        tools=[TOOL],
        tool_choice="required",
        max_output_tokens=9,
        store=False,
    )
    assert (found.status, found.output_text, found.model) == ("completed", "See", "public")
    assert (found.instructions, found.max_output_tokens, found.tools[0].name) == ("Be brief.", 9, "look")
    call = found.output[1]
    assert (call.type, call.call_id, call.name, json.loads(call.arguments)) == ("function_call", "t2", "look", {"q": 2})
    assert (found.usage.input_tokens, found.usage.input_tokens_details.cached_tokens) == (8, 3)
    assert found.model_extra["store"] is False
    sent = json.loads(provider.seen[0][1])
    assert sent["system"] == [{"text": "Be brief."}]
    assert sent["messages"] == [
        {"role": "user", "content": [{"text": "Look"}]},
        {"role": "assistant", "content": [{"toolUse": {"toolUseId": "t1", "name": "look", "input": {"q": 1}}}]},
        {"role": "user", "content": [{"toolResult": {"toolUseId": "t1", "content": [{"text": "42"}]}}]},
    ]
    assert sent["inferenceConfig"] == {"maxTokens": 9}
    assert sent["toolConfig"]["toolChoice"] == {"any": {}}


def test_a_response_of_bedrock_is_streamed_with_the_events_of_openai(front: Front, make_provider: Make) -> None:
    provider = make_provider(events(*STREAM))
    route(front, provider, backend(provider.url), secrets={"aws": KEYS})
    with at(front).responses.stream(model="public", input="Hi", tools=[TOOL]) as stream:
        kinds = [each.type for each in stream]
        final = stream.get_final_response()
    assert kinds[:4] == [
        "response.created",
        "response.in_progress",
        "response.output_item.added",
        "response.content_part.added",
    ]
    assert kinds.count("response.output_text.delta") == 2
    order = ["response.output_text.done", "response.output_item.done", "response.function_call_arguments.done"]
    assert [each for each in kinds if each in order] == [*order, "response.output_item.done"]
    assert kinds[-1] == "response.completed"
    assert final.output_text == "Hello"
    assert (final.output[1].call_id, final.output[1].arguments) == ("t1", '{"q": 1}')
    assert final.usage.total_tokens == 7


def test_a_stream_of_a_response_that_breaks_off_is_never_completed(front: Front, make_provider: Make) -> None:
    import openai  # takes a second, so not in each test process

    provider = make_provider(events(*STREAM[:3]))
    route(front, provider, backend(provider.url), secrets={"aws": KEYS})
    kinds: list[str] = []
    stream = at(front).responses.create(model="public", input="Hi", stream=True)
    with pytest.raises(openai.APIError, match="before its answer was whole"):
        kinds.extend(each.type for each in stream)
    assert "response.output_text.delta" in kinds
    assert "response.completed" not in kinds


def test_a_response_that_reaches_its_limit_is_incomplete() -> None:
    form = ResponseForm("m", {"max_output_tokens": 1})
    text = b"".join((form.begins(), form.text("a"), form.finishes("length"), form.ends(Usage(1, 1))))
    parsed = [json.loads(part.split("data: ", 1)[1]) for part in text.decode().split("\n\n")[:-1]]
    assert [each["sequence_number"] for each in parsed] == list(range(len(parsed)))
    assert parsed[-1]["type"] == "response.incomplete"
    assert parsed[-1]["response"]["incomplete_details"] == {"reason": "max_output_tokens"}
    assert parsed[0]["response"]["output"] == [], "an event shows what was known when it was sent"
    assert parsed[-1]["response"]["output"][0]["status"] == "incomplete"


@pytest.mark.parametrize("finish", ["length", "content_filter"])
def test_only_the_last_item_of_an_incomplete_response_is_incomplete(finish: str) -> None:
    calls = (Call("t1", "find", "{}"), Call("t2", "find", '{"q": '))
    whole = json.loads(ResponseForm("m", {}).whole(Message("a", calls, finish, Usage(1, 1))))
    form = ResponseForm("m", {})
    form.text("a")
    for index, call in enumerate(calls):
        form.tool_begins(index, call.id, call.name)
        form.tool_arguments(index, call.arguments)
    form.finishes(finish)
    streamed = json.loads(form.ends(Usage(1, 1)).decode().split("data: ", 1)[1])["response"]
    for response in (whole, streamed):
        assert response["status"] == "incomplete"
        assert [item["status"] for item in response["output"]] == ["completed", "completed", "incomplete"]
    cut = json.loads(ResponseForm("m", {}).whole(Message("a", (), finish, Usage(1, 1))))
    assert [item["status"] for item in cut["output"]] == ["incomplete"]
    ended = json.loads(ResponseForm("m", {}).whole(Message("a", (), "stop", Usage(1, 1))))
    assert [item["status"] for item in ended["output"]] == ["completed"]


@pytest.mark.parametrize(
    ("fields", "param"),
    [
        ({"previous_response_id": "resp_1"}, "previous_response_id"),
        ({"store": True}, "store"),
        ({"background": True}, "background"),
        ({"conversation": "conv_1"}, "conversation"),
        ({"truncation": "auto"}, "truncation"),
        ({"text": {"format": {"type": "json_schema"}}}, "text.format"),
        ({"tools": [{"type": "web_search"}]}, "tools"),
        ({"tools": [TOOL], "tool_choice": {"type": "web_search"}}, "tool_choice"),
        ({"input": [{"type": "item_reference", "id": "msg_1"}]}, "input[0]"),
        ({"input": [{"role": "user", "content": [{"type": "input_file"}]}]}, "input[0].content[0]"),
        ({"input": 3}, "input"),
        ({"instructions": ["a"]}, "instructions"),
    ],
)
def test_what_a_response_cannot_be_without_openai_is_refused(fields: dict[str, Any], param: str) -> None:
    with pytest.raises(NotTranslatable) as caught:
        responses.chat_values({"input": "Hi"} | fields, "Bedrock")
    assert caught.value.param == param


def test_a_field_of_a_message_is_named_as_the_client_sent_it(front: Front, make_provider: Make) -> None:
    provider = make_provider()
    route(front, provider, backend(provider.url), secrets={"aws": KEYS})
    picture = {"type": "input_image", "image_url": "https://a/b.png"}
    asked = {"model": "public", "input": [{"role": "user", "content": [picture]}]}
    status, _, answer = front.ask(asked, f"/routers/prod/r{RESPONSES}")
    assert (status, answer["error"]["param"]) == (400, "input[0].content")
    assert not provider.seen


def test_anthropic_has_completions_and_responses_too() -> None:
    values = responses.chat_values({"input": "Hi", "max_output_tokens": 5}, anthropic.NAME)
    assert json.loads(anthropic.request(values, "claude"))["max_tokens"] == 5
    external = ExternalModel("anthropic", "https://api.anthropic.com", "claude")
    assert {CHAT, COMPLETIONS, RESPONSES} < set(endpoints_of(external))


# --- embeddings -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("encoding", ["float", "base64"])
def test_titan_embeds_one_text(front: Front, make_provider: Make, encoding: str) -> None:
    said = {"embedding": [0.5, -0.25], "embeddingsByType": {"float": [0.5, -0.25]}, "inputTextTokenCount": 3}
    provider = make_provider(says("200 OK", json.dumps(said).encode()))
    route(front, provider, embedding_backend(provider.url, TITAN), secrets={"aws": KEYS})
    found = at(front).embeddings.create(model="public", input="Hi", dimensions=256, encoding_format=encoding)
    if encoding == "base64":
        status, _, raw = front.ask(
            {"model": "public", "input": "Hi", "encoding_format": "base64"}, f"/routers/prod/r{EMBEDDINGS}"
        )
        assert (status, raw["data"][0]["embedding"]) == (200, "AAAAPwAAgL4="), "little-endian floats"
    else:
        assert found.data[0].embedding == [0.5, -0.25]
    assert (found.model, found.usage.prompt_tokens, found.usage.total_tokens) == ("public", 3, 3)
    assert json.loads(provider.seen[0][1]) == {"inputText": "Hi", "dimensions": 256}
    method, target, _ = provider.seen[0][0].split(b"\r\n")[0].decode().split(" ")
    assert target == "/model/amazon.titan-embed-text-v2%3A0/invoke"
    keys = {"key_id": "AKID", "secret": "secret-key", "region": "cn-north-1", "token": "", "service": "bedrock"}
    assert sigv4.refusal(method, target, provider.headers(), body=provider.seen[-1][1], **keys) is None


def test_cohere_embeds_several_texts_and_the_tokens_are_in_the_head(front: Front, make_provider: Make) -> None:
    vectors = [[1.0, 0.0], [0.0, 1.0]]
    said = {"embeddings": {"float": vectors}, "id": "1", "response_type": "embeddings_by_type", "texts": ["a", "b"]}
    counted = b"X-Amzn-Bedrock-Input-Token-Count: 4"
    provider = make_provider(says("200 OK", json.dumps(said).encode(), counted))
    route(front, provider, embedding_backend(provider.url, COHERE), secrets={"aws": KEYS})
    found = at(front).embeddings.create(
        model="public", input=["a", "b"], dimensions=512, extra_body={"input_type": "search_query"}
    )
    assert [each.embedding for each in found.data] == vectors
    assert found.usage.prompt_tokens == 4
    assert json.loads(provider.seen[0][1]) == {
        "texts": ["a", "b"],
        "input_type": "search_query",
        "embedding_types": ["float"],
        "truncate": "NONE",
        "output_dimension": 512,
    }


@pytest.mark.parametrize(
    ("family", "model", "fields", "param"),
    [
        ("titan-v2", TITAN, {"input": ["a", "b"]}, "input"),
        ("titan-v2", TITAN, {"input": [[1, 2]]}, "input"),
        ("titan-v2", TITAN, {"input": []}, "input"),
        ("titan-v2", TITAN, {"input": "a", "dimensions": "many"}, "dimensions"),
        ("titan", "amazon.titan-embed-text-v1", {"input": "a", "dimensions": 256}, "dimensions"),
        ("cohere", "cohere.embed-english-v3", {"input": ["a"] * 97}, "input"),
        ("cohere", "cohere.embed-english-v3", {"input": "a", "input_type": 1}, "input_type"),
        ("vertex", "google/gemini-embedding-001", {"input": ["a", "b"]}, "input"),
        ("vertex", "text-embedding-005", {"input": "a", "encoding_format": "hex"}, "encoding_format"),
    ],
)
def test_what_an_embedding_model_does_not_take_is_refused(
    family: Family, model: str, fields: dict[str, Any], param: str
) -> None:
    with pytest.raises(NotTranslatable) as caught:
        embeddings.request(fields, family, model, "it")
    assert caught.value.param == param


@pytest.mark.parametrize("said", [b"[]", b"{}", b'{"embedding": "x"}', b'{"embedding": [null]}', b"<html>"])
def test_what_are_no_embeddings_is_refused(said: bytes) -> None:
    answer = WholeAnswer(EmbeddingForm("m", "titan", {}).write, embeddings.ANSWER)
    answer.feed(said)
    with pytest.raises(AnswerIncomplete, match="embeddings"):
        answer.end()


def test_embedding_models_are_known_by_their_names() -> None:
    profile = "arn:aws:bedrock:eu-west-1:1:inference-profile/eu.cohere.embed-v4:0"
    known = {
        TITAN: "titan-v2",
        "amazon.titan-embed-text-v1": "titan",
        "amazon.titan-embed-g1-text-02": "titan",
        "cohere.embed-multilingual-v3": "cohere",
        profile: "cohere-v4",
        "anthropic.claude-3-haiku-20240307-v1:0": None,
        "cohere.command-r-v1:0": None,
    }
    assert {model: bedrock_family(model) for model in known} == known
    assert vertex_family("google/text-multilingual-embedding-002") == "vertex"
    assert vertex_family("google/gemini-2.5-flash") is None


# --- what a model has -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("model", "path", "has"),
    [
        (TITAN, CHAT, EMBEDDINGS),
        (TITAN, COMPLETIONS, EMBEDDINGS),
        ("anthropic.claude-3-haiku-20240307-v1:0", EMBEDDINGS, f"{CHAT}, {COMPLETIONS}, {RESPONSES}"),
        ("amazon.nova-2-multimodal-embeddings-v1:0", EMBEDDINGS, "none of the gateway's endpoints"),
    ],
)
def test_an_endpoint_that_a_model_does_not_have_is_answered_with_those_that_it_has(
    front: Front, make_provider: Make, model: str, path: str, has: str
) -> None:
    provider = make_provider()
    route(front, provider, embedding_backend(provider.url, model), secrets={"aws": KEYS})
    status, _, answer = front.ask({"model": "public", "input": "a"}, f"/routers/prod/r{path}")
    assert (status, answer["error"]["code"]) == (404, "unsupported_path")
    assert answer["error"]["message"].endswith(f"it has {has}")
    assert not provider.seen


def test_the_list_of_models_says_which_endpoints_each_has() -> None:
    url = "https://bedrock-runtime.eu-west-1.amazonaws.com"
    chats = RouterBackend("c", display_name="chat", external=backend(url).external, capabilities=frozenset({"vision"}))
    vectors = RouterBackend("v", display_name="vectors", external=embedding_backend(url, TITAN).external)
    local = RouterBackend("l", display_name="local", service="svc")
    router = Router("prod", "r", (chats, vectors, local), ())
    assert entry("vectors", router)["endpoints"] == [EMBEDDINGS]
    assert entry("vectors", router)["capabilities"] == ["embeddings"]
    assert entry("chat", router)["endpoints"] == sorted([CHAT, COMPLETIONS, RESPONSES])
    assert entry("chat", router)["capabilities"] == ["chat", "completions", "responses", "vision"]
    assert "endpoints" not in entry("local", router), "the engine is not known here"
    assert "endpoints" not in entry("r", router)
    assert entry("r", Router("prod", "r", (chats, vectors), ()))["endpoints"] == sorted(
        [CHAT, COMPLETIONS, EMBEDDINGS, RESPONSES]
    )
