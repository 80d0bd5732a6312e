"""OpenAI's embeddings by Bedrock's InvokeModel (Titan, Cohere) and by Vertex AI's `predict`. Pure.

The forms are those of "Amazon Titan Embeddings Text" and "Cohere Embed" in the Amazon Bedrock User Guide, and of "Text
embeddings API" in Vertex AI's reference.
"""

from __future__ import annotations

import base64
import re
import struct
from collections.abc import Mapping
from typing import Any, Literal, NamedTuple

from gateway.routers import chat
from gateway.routers.answers import encoded
from gateway.routers.chat import NotTranslatable
from kubeapi.json_types import Json

Family = Literal["titan", "titan-v2", "cohere", "cohere-v4", "vertex"]
ANSWER = "one with embeddings"
TOKENS_HEADER = "X-Amzn-Bedrock-Input-Token-Count"
"""Has the tokens of a request of InvokeModel, also where the body has none."""
COHERE_TEXTS = 96
"""Most texts of a request for Cohere's models."""
_BEDROCK: tuple[tuple[re.Pattern[str], Family], ...] = (
    (re.compile(r"amazon\.titan-embed-text-v2"), "titan-v2"),
    (re.compile(r"amazon\.titan-embed-(text-v1|g1-text)"), "titan"),
    (re.compile(r"cohere\.embed-v4"), "cohere-v4"),
    (re.compile(r"cohere\.embed-"), "cohere"),
)
_VERTEX = re.compile(r"(gemini-embedding|text-embedding|text-multilingual-embedding|textembedding-gecko)\b.*")


def bedrock_family(model: str) -> Family | None:
    """Return the form of an embedding model of Bedrock; None for another model. Profiles begin with a region."""
    name = model.rpartition("/")[2]
    return next((family for pattern, family in _BEDROCK if pattern.search(name)), None)


def vertex_family(model: str) -> Family | None:
    """Return the form of an embedding model of Vertex AI; None for another model."""
    return "vertex" if _VERTEX.fullmatch(model.rpartition("/")[2]) else None


def is_other_embedding(model: str) -> bool:
    """Return whether a model makes embeddings in a form that is not translated."""
    return "embed" in model.rpartition("/")[2]


# --- requests ---------------------------------------------------------------------------------------------------------


def request(values: Mapping[str, Any], family: Family, model: str, provider: str) -> bytes:
    """Return the provider's body for a request for embeddings. Raises NotTranslatable."""
    texts = _texts(values.get("input"), provider)
    if values.get("encoding_format") not in (None, "float", "base64"):
        raise NotTranslatable("`encoding_format` is neither `float` nor `base64`", "encoding_format")
    dimensions = values.get("dimensions")
    if dimensions is not None and (not isinstance(dimensions, int) or isinstance(dimensions, bool)):
        raise NotTranslatable("`dimensions` is not a whole number", "dimensions")
    if family in ("titan", "cohere") and dimensions is not None:
        raise NotTranslatable(f"the model {model} has a fixed number of dimensions", "dimensions")
    one_at_once = family in ("titan", "titan-v2") or "gemini-embedding" in model
    if one_at_once and len(texts) > 1:
        raise NotTranslatable(f"the model {model} takes one text in a request", "input")
    match family:
        case "titan":
            return chat.encoded({"inputText": texts[0]})
        case "titan-v2":
            return chat.encoded({"inputText": texts[0], **_given("dimensions", dimensions)})
        case "cohere" | "cohere-v4":
            if len(texts) > COHERE_TEXTS:
                raise NotTranslatable(f"the model {model} takes {COHERE_TEXTS} texts in a request", "input")
            made = {"texts": texts, "input_type": _kind(values, "input_type") or "search_document"}
            made |= {"embedding_types": ["float"], "truncate": "NONE"}
            return chat.encoded(made | _given("output_dimension", dimensions))
        case "vertex":
            task = _kind(values, "task_type")
            instances = [{"content": text, **_given("task_type", task or None)} for text in texts]
            # A text that is too long is an error, as with OpenAI, and is not cut.
            parameters = {"autoTruncate": False, **_given("outputDimensionality", dimensions)}
            return chat.encoded({"instances": instances, "parameters": parameters})


def _texts(given: Any, provider: str) -> list[str]:
    texts = [given] if isinstance(given, str) else given
    if not isinstance(texts, list) or not texts or not all(isinstance(each, str) and each for each in texts):
        raise NotTranslatable(f"{provider} takes texts that are not empty, and no tokens", "input")
    return texts


def _kind(values: Mapping[str, Any], name: str) -> str:
    """Return what the texts are for. It is no field of OpenAI's, and clients send it in addition."""
    found = values.get(name, "")
    if not isinstance(found, str):
        raise NotTranslatable(f"`{name}` is not a text", name)
    return found


def _given(name: str, value: Any) -> Json:
    return {name: value} if value is not None else {}


# --- answers ----------------------------------------------------------------------------------------------------------


class _Vectors(NamedTuple):
    vectors: list[list[float]]
    tokens: int


class EmbeddingForm:
    """Writes the embeddings of an answer in OpenAI's form."""

    def __init__(self, model: str, family: Family, values: Mapping[str, Any]) -> None:
        """`values` are the fields of the client's request."""
        self._model = model
        self._family = family
        self._as_base64 = values.get("encoding_format") == "base64"
        self._tokens = 0

    def read_headers(self, headers: Mapping[str, str]) -> None:
        """Take the number of tokens from the head of Bedrock's answer."""
        found = headers.get(TOKENS_HEADER, "")
        self._tokens = int(found) if re.fullmatch(r"[0-9]{1,12}", found) else 0

    def write(self, answer: Json) -> bytes:
        """Return the answer for the client. Raises KeyError, TypeError and the like for one that is not valid."""
        found = _vectors(answer, self._family)
        tokens = found.tokens or self._tokens
        data = [
            {"object": "embedding", "index": index, "embedding": self._written([float(each) for each in vector])}
            for index, vector in enumerate(found.vectors)
        ]
        usage = {"prompt_tokens": tokens, "total_tokens": tokens}
        return encoded({"object": "list", "data": data, "model": self._model, "usage": usage})

    def _written(self, vector: list[float]) -> Any:
        if not self._as_base64:
            return vector
        return base64.b64encode(struct.pack(f"<{len(vector)}f", *vector)).decode()


def _vectors(answer: Json, family: Family) -> _Vectors:
    match family:
        case "titan" | "titan-v2":
            return _Vectors([answer["embedding"]], int(answer.get("inputTextTokenCount") or 0))
        case "cohere" | "cohere-v4":
            found = answer["embeddings"]
            return _Vectors(found["float"] if isinstance(found, dict) else found, 0)
        case "vertex":
            made = [each["embeddings"] for each in answer["predictions"]]
            tokens = sum(int((each.get("statistics") or {}).get("token_count") or 0) for each in made)
            return _Vectors([each["values"] for each in made], tokens)
