"""Makes the requests to providers, and reads their answers. Pure; `provider_call` does the I/O.

Providers of OpenAI's API get the client's body with another model, as do Vertex AI for chat completions and Anthropic
for its own API. For the others, completions (`completions`) and responses (`responses`) become chats, which `anthropic`
and `bedrock` translate further. Embeddings are those of `embeddings`. `endpoints` says which model has what.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any, Protocol
from urllib.parse import quote

from agent.sources.sigv4 import SigV4Signer
from gateway.clients.request_body import RequestBody
from gateway.errors import GatewayError
from gateway.routers import anthropic, bedrock, chat, completions, embeddings, endpoints, openai_chat, responses
from gateway.routers.answers import FixedError, Form, WholeAnswer, message_answer
from gateway.routers.chat_form import ChatForm
from gateway.routers.completions import CompletionForm
from gateway.routers.embeddings import EmbeddingForm
from gateway.routers.endpoints import CHAT, COUNT_TOKENS, EMBEDDINGS, MESSAGES, endpoints_of, unserved
from gateway.routers.google_tokens import AccountInvalid, ServiceAccount, service_account
from gateway.routers.response_form import ResponseForm
from program.desired.router import ExternalModel
from program.desired.web_address import AddressInvalid, WebAddress

KEYS = {
    "openai": ("OPENAI_API_KEY",),
    "litellm": ("LITELLM_MASTER_KEY",),
    "anthropic": ("ANTHROPIC_API_KEY",),
    "bedrock": ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY", "AWS_SESSION_TOKEN", "AWS_REGION"),
    "vertex_ai": ("GOOGLE_APPLICATION_CREDENTIALS",),
}
"""The keys of the Secret that are read, by provider."""
VERTEX = "Vertex AI"
KEY_MAX = 16384
"""The longest key that is sent in a header, in characters."""


class Answer(Protocol):
    """Turns the body of an answer into the one for the client."""

    def feed(self, data: bytes) -> bytes:
        """Return what the client gets for the next bytes."""

    def end(self) -> bytes:
        """Return the rest. Raises `AnswerIncomplete`."""


class Unchanged:
    """Passes the body on."""

    def feed(self, data: bytes) -> bytes:
        return data

    def end(self) -> bytes:
        return b""


@dataclass(frozen=True)
class ProviderRequest:
    """One request to a provider."""

    url: str
    headers: Mapping[str, str] = field(repr=False)
    body: bytes = field(repr=False)
    answer: Answer
    error: Callable[[int], Answer]
    """Returns what reads an answer with a status of 400 and above."""
    content_type: str = ""
    """The content type of an answer below 400; empty: the provider's own."""
    account: ServiceAccount | None = None
    """The service account of Google whose token is sent."""
    is_signed: bool = False
    """The address is sent exactly as it is written."""
    read_headers: Callable[[Mapping[str, str]], None] = lambda _: None
    """Gets the headers of an answer below 400, with their names in any case."""


def provider_request(
    external: ExternalModel, path: str, body: RequestBody, secret: Mapping[str, str] | str
) -> ProviderRequest | GatewayError:
    """Return the request for the provider. `secret` is the content of its Secret, or why it is not known."""
    if isinstance(secret, str):
        return _not_accessible(secret)
    required = KEYS[external.provider][: 2 if external.provider == "bedrock" else 1]
    for name in required if external.secret else ():
        if not secret.get(name, "").strip() or (external.provider != "vertex_ai" and not _is_key(secret[name].strip())):
            return _not_accessible(
                f"the Secret `{external.secret}` has no valid value `{name}`, which {external.provider} requires"
            )
    if path not in endpoints_of(external):
        return unserved(external, path)
    try:
        match external.provider:
            case "anthropic":
                return _to_anthropic(external, path, body, secret)
            case "bedrock":
                return _to_bedrock(external, path, body, secret)
            case "vertex_ai":
                return _to_vertex(external, path, body, secret)
            case _:
                return _to_openai(external, path, body, secret)
    except chat.NotTranslatable as error:
        return GatewayError(400, "unsupported_parameter", error.why, error.param)


def _to_openai(external: ExternalModel, path: str, body: RequestBody, secret: Mapping[str, str]) -> ProviderRequest:
    headers = _headers()
    if key := secret.get(KEYS[external.provider][0], "").strip():
        headers["Authorization"] = f"Bearer {key}"
    return _unchanged(external, path, body, headers)


def _to_anthropic(external: ExternalModel, path: str, body: RequestBody, secret: Mapping[str, str]) -> ProviderRequest:
    key = secret.get(KEYS["anthropic"][0], "").strip()
    headers = _headers() | {"x-api-key": key, "anthropic-version": anthropic.VERSION}
    if path in (MESSAGES, COUNT_TOKENS):
        return _unchanged(external, path, body, headers)
    translated = _as_chat(path, body, anthropic.NAME, lambda values: anthropic.request(values, external.model))
    url, form = address(external.url, MESSAGES), _form(path, body)
    if body.values.get("stream"):
        answer: Answer = anthropic.StreamedAnswer(form)
        return ProviderRequest(url, headers, translated, answer, _anthropic_error, "text/event-stream")
    answer = message_answer(anthropic.message_of, form, anthropic.ANSWER)
    return ProviderRequest(url, headers, translated, answer, _anthropic_error)


def _to_bedrock(
    external: ExternalModel, path: str, body: RequestBody, secret: Mapping[str, str]
) -> ProviderRequest | GatewayError:
    key_id, key, token, region = (secret.get(name, "").strip() for name in KEYS["bedrock"])
    region = bedrock.region_of(external.url) or region
    if not _is_key(region or " ") or (token and not _is_key(token)):
        return _not_accessible(
            f"the Secret `{external.secret}` has no valid value `AWS_REGION` or `AWS_SESSION_TOKEN`, and the host of "
            "`url` names no region"
        )
    streamed = path != EMBEDDINGS and bool(body.values.get("stream"))
    family, vectors = embeddings.bedrock_family(external.model), None
    if family is not None:
        vectors = EmbeddingForm(body.model, family, body.values)
        translated = embeddings.request(body.values, family, external.model, bedrock.NAME)
        path_there = bedrock.invoke_path_of(external.model)
    else:
        translated = _as_chat(path, body, bedrock.NAME, bedrock.request)
        path_there = bedrock.path_of(external.model, streamed=streamed)
    try:
        # The address is sent as it is signed, without another encoding.
        place = WebAddress.parse(external.url + path_there)
    except AddressInvalid as error:
        return GatewayError(503, "provider_not_accessible", f"the address of Bedrock {error}", retry_after_s=5.0)
    signer = SigV4Signer(key_id, key, token, region, bedrock.SERVICE)
    digest, kind = hashlib.sha256(translated).hexdigest(), {"content-type": "application/json"}
    signature = signer.headers("POST", place.authority, place.target, body_sha256=digest, signed=kind)
    headers = signature | {"Host": place.authority, "Accept-Encoding": "identity"}
    made = ProviderRequest(place.sent, headers, translated, Unchanged(), _bedrock_error, is_signed=True)
    if vectors is not None:
        answer: Answer = WholeAnswer(vectors.write, embeddings.ANSWER)
        return replace(made, answer=answer, content_type="application/json", read_headers=vectors.read_headers)
    form = _form(path, body)
    if streamed:
        return replace(made, answer=bedrock.StreamedAnswer(form), content_type="text/event-stream")
    answer = message_answer(bedrock.message_of, form, bedrock.ANSWER)
    return replace(made, answer=answer, content_type="application/json")


def _to_vertex(
    external: ExternalModel, path: str, body: RequestBody, secret: Mapping[str, str]
) -> ProviderRequest | GatewayError:
    name = KEYS["vertex_ai"][0]
    try:
        account = service_account(secret.get(name, ""))
    except AccountInvalid as error:
        return _not_accessible(f"the value `{name}` of the Secret `{external.secret}` {error}")
    url, payload = address(external.url, CHAT), body.with_model(external.model)
    made = ProviderRequest(url, _headers(), payload, Unchanged(), _vertex_error, account=account)
    if path == CHAT:
        return made
    if path == EMBEDDINGS:
        project, found, _ = external.url.partition("/endpoints/")
        if not found:
            return _not_accessible("the `url` of Vertex AI does not have `/endpoints/openapi` after the location")
        vectors = EmbeddingForm(body.model, "vertex", body.values)
        url = f"{project}/publishers/google/models/{quote(external.model.rpartition('/')[2], safe='-_.~@')}:predict"
        payload = embeddings.request(body.values, "vertex", external.model, VERTEX)
        answer: Answer = WholeAnswer(vectors.write, embeddings.ANSWER)
        return replace(made, url=url, body=payload, answer=answer, content_type="application/json")

    def asked(values: Mapping[str, Any]) -> bytes:
        usage = {"stream_options": {"include_usage": True}} if values.get("stream") else {}
        return chat.encoded({**values, **usage, "model": external.model})

    payload, form = _as_chat(path, body, VERTEX, asked), _form(path, body)
    if body.values.get("stream"):
        answer = openai_chat.StreamedAnswer(form)
        return replace(made, body=payload, answer=answer, content_type="text/event-stream")
    answer = message_answer(openai_chat.message_of, form, openai_chat.ANSWER)
    return replace(made, body=payload, answer=answer, content_type="application/json")


def _as_chat(path: str, body: RequestBody, provider: str, request: Callable[[Mapping[str, Any]], bytes]) -> bytes:
    """Return the provider's body for a request that is a chat, or becomes one. Raises NotTranslatable."""
    match path:
        case endpoints.COMPLETIONS:
            return request(completions.chat_values(body.values, provider))
        case endpoints.RESPONSES:
            values = responses.chat_values(body.values, provider)
            try:
                return request(values)
            except chat.NotTranslatable as error:
                # The client's field is the one of which the messages are made.
                raise chat.NotTranslatable(error.why, error.param.replace("messages", "input", 1)) from None
    return request(body.values)


def _form(path: str, body: RequestBody) -> Form:
    with_usage = chat.wants_usage(body.values)
    match path:
        case endpoints.COMPLETIONS:
            return CompletionForm(body.model, with_usage=with_usage)
        case endpoints.RESPONSES:
            return ResponseForm(body.model, body.values)
    return ChatForm(body.model, with_usage=with_usage)


def _unchanged(external: ExternalModel, path: str, body: RequestBody, headers: Mapping[str, str]) -> ProviderRequest:
    url = address(external.url, path)
    return ProviderRequest(url, headers, body.with_model(external.model), Unchanged(), lambda _: Unchanged())


def _headers() -> dict[str, str]:
    return {"Content-Type": "application/json", "Accept-Encoding": "identity"}


def _anthropic_error(_status: int) -> Answer:
    return anthropic.WholeError()


def _bedrock_error(status: int) -> Answer:
    return FixedError(bedrock.NAME, status)


def _vertex_error(status: int) -> Answer:
    return FixedError(VERTEX, status)


def _not_accessible(why: str) -> GatewayError:
    return GatewayError(503, "provider_not_accessible", why, retry_after_s=5.0)


def _is_key(text: str) -> bool:
    return len(text) <= KEY_MAX and text.isascii() and text.isprintable() and " " not in text


def address(base: str, path: str) -> str:
    """Return the address of a path of OpenAI's API. A base with a path of its own takes the place of `/v1`."""
    has_path = "/" in base.partition("://")[2]
    return base + (path.removeprefix("/v1") if has_path else path)
