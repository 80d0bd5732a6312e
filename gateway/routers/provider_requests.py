"""Makes the requests to providers, and reads their answers. Pure; `provider_call` does the I/O.

Providers of OpenAI's API get the client's body with another model. Anthropic gets chat completions translated
(`anthropic`), and its own API as it is.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Protocol

from gateway.clients.request_body import RequestBody
from gateway.errors import GatewayError
from gateway.routers import anthropic, chat
from program.desired.router import ExternalModel

KEYS = {
    "openai": "OPENAI_API_KEY",
    "litellm": "LITELLM_MASTER_KEY",
    "anthropic": "ANTHROPIC_API_KEY",
}
"""The key in the Secret, by provider."""
CHAT, MESSAGES = "/v1/chat/completions", "/v1/messages"
OPENAI_PATHS = frozenset({CHAT, "/v1/completions", "/v1/embeddings", "/v1/responses"})
ANTHROPIC_PATHS = frozenset({CHAT, MESSAGES, "/v1/messages/count_tokens"})


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
    error: Answer
    """The answer with a status of 400 and above."""
    content_type: str = ""
    """Of an answer below 400; empty: the provider's own."""


def provider_request(
    external: ExternalModel, path: str, body: RequestBody, secret: Mapping[str, str] | str
) -> ProviderRequest | GatewayError:
    """Return the request for the provider. `secret` is the content of its Secret, or why it is not known."""
    if isinstance(secret, str):
        return GatewayError(503, "provider_not_accessible", secret, retry_after_s=5.0)
    name = KEYS[external.provider]
    key = secret.get(name, "").strip()
    if external.secret and (not key or not key.isascii() or not key.isprintable()):
        message = f"the Secret `{external.secret}` has no valid value `{name}`, which {external.provider} requires"
        return GatewayError(503, "provider_not_accessible", message, retry_after_s=5.0)
    if path not in (ANTHROPIC_PATHS if external.provider == "anthropic" else OPENAI_PATHS):
        return GatewayError(404, "unsupported_path", f"the provider {external.provider} does not serve {path}")
    headers = {"Content-Type": "application/json", "Accept-Encoding": "identity"}
    if external.provider != "anthropic":
        if key:
            headers["Authorization"] = f"Bearer {key}"
        url = address(external.url, path)
        return ProviderRequest(url, headers, body.with_model(external.model), Unchanged(), Unchanged())
    headers |= {"x-api-key": key, "anthropic-version": anthropic.VERSION}
    if path != CHAT:
        url = address(external.url, path)
        return ProviderRequest(url, headers, body.with_model(external.model), Unchanged(), Unchanged())
    try:
        translated = anthropic.request(body.values, external.model)
    except chat.NotTranslatable as error:
        return GatewayError(400, "unsupported_parameter", error.why, error.param)
    url = address(external.url, MESSAGES)
    if body.values.get("stream"):
        answer: Answer = anthropic.StreamedAnswer(body.model, with_usage=chat.wants_usage(body.values))
        return ProviderRequest(url, headers, translated, answer, anthropic.WholeError(), "text/event-stream")
    return ProviderRequest(url, headers, translated, anthropic.WholeAnswer(body.model), anthropic.WholeError())


def address(base: str, path: str) -> str:
    """Return the address of a path of OpenAI's API. A base with a path of its own takes the place of `/v1`."""
    has_path = "/" in base.partition("://")[2]
    return base + (path.removeprefix("/v1") if has_path else path)
