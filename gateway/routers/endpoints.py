"""The endpoints of OpenAI's API that a provider's model has. Pure.

`provider_requests` refuses the others, and `dispatching` lists them with the router's models.
"""

from __future__ import annotations

from collections.abc import Iterable

from gateway.errors import GatewayError
from gateway.routers import embeddings
from kubeapi.json_types import Json
from program.desired.router import ExternalModel, RouterBackend

CHAT, COMPLETIONS, RESPONSES = "/v1/chat/completions", "/v1/completions", "/v1/responses"
EMBEDDINGS, MESSAGES, COUNT_TOKENS = "/v1/embeddings", "/v1/messages", "/v1/messages/count_tokens"
CAPABILITIES = {
    CHAT: "chat",
    COMPLETIONS: "completions",
    RESPONSES: "responses",
    EMBEDDINGS: "embeddings",
    MESSAGES: "messages",
}
"""The words for endpoints in the list of models."""
_OF_CHATS = (CHAT, COMPLETIONS, RESPONSES)


def endpoints_of(external: ExternalModel) -> tuple[str, ...]:
    """Return the paths that a model has at the gateway. Of OpenAI's own API it is not known which of them it serves."""
    match external.provider:
        case "anthropic":
            return (*_OF_CHATS, MESSAGES, COUNT_TOKENS)
        case "bedrock":
            family = embeddings.bedrock_family(external.model)
        case "vertex_ai":
            family = embeddings.vertex_family(external.model)
        case _:
            return (*_OF_CHATS, EMBEDDINGS)
    if family is not None:
        return (EMBEDDINGS,)
    return () if embeddings.is_other_embedding(external.model) else _OF_CHATS


def unserved(external: ExternalModel, path: str) -> GatewayError:
    """Return the answer for a path that a model does not have."""
    served = ", ".join(endpoints_of(external)) or "none of the gateway's endpoints"
    message = f"the model {external.model} of {external.provider} does not have {path}; it has {served}"
    return GatewayError(404, "unsupported_path", message)


def listed_endpoints(backends: Iterable[RouterBackend]) -> Json:
    """Return what the list of models says of backends: nothing if the endpoints of one are not known here."""
    found: set[str] = set()
    words: set[str] = set()
    for backend in backends:
        if backend.external is None:
            return {}
        found.update(endpoints_of(backend.external))
        words |= backend.capabilities
    words.update(CAPABILITIES[each] for each in found if each in CAPABILITIES)
    return {"capabilities": sorted(words), "endpoints": sorted(found)}
