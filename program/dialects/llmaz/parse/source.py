"""The source of an OpenModel's weights: variables of the loader, and paths in pods. Pure.

The names of variables, Secrets and paths are those of llmaz's loader.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from typing import Literal

from kubeapi.json_types import Json
from program.desired.web_address import AddressInvalid, check_characters, read_authority, shown
from program.dialects.llmaz.naming import MODELS
from program.dialects.llmaz.schema.model import URI, ModelHub

Kind = Literal["hub", "oss", "s3", "gcs", "ollama", "host"]

HUB_SECRET = "modelhub-secret"  # noqa: S105 - the name of a Secret
HUB_TOKENS = ("HUGGING_FACE_HUB_TOKEN", "HF_TOKEN")
STORE_SECRETS: dict[str, tuple[str, tuple[str, str]]] = {
    "oss": ("oss-access-secret", ("OSS_ACCESS_KEY_ID", "OSS_ACCESS_KEY_SECRET")),
    "s3": ("aws-access-secret", ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY")),
    "gcs": ("aws-access-secret", ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY")),
}
"""The Secret of each scheme and its keys, which are also the variables. Cloud Storage is read through its S3 API."""


@dataclass(frozen=True)
class Source:
    """One source of weights, parsed."""

    kind: Kind
    address: str
    """The address as written; `<org>/<repo>` for a hub."""
    path: str
    """Path of the fetched weights in pods: the variable ModelPath."""
    remote: str
    """The engine's argument if it fetches the weights itself."""
    loader: tuple[Json, ...] | None = None
    """Environment with the loader's source; None if there is nothing to fetch."""
    credentials: tuple[Json, ...] = field(default=())
    """Environment with the credentials, for the loader, or for an engine that fetches the weights itself."""
    host_path: str = ""
    """Directory or file of the node."""
    filename: str = ""
    revision: str = ""
    hub: str = ""


def hub_source(hub: ModelHub) -> Source:
    """Read a repository of a model hub."""
    path = MODELS + (hub.filename or f"models--{hub.model_id.replace('/', '--')}")
    variables = {
        "MODEL_SOURCE_TYPE": "modelhub",
        "MODEL_ID": hub.model_id,
        "MODEL_HUB_NAME": hub.name,
        "MODEL_FILENAME": hub.filename or "",
        "REVISION": hub.revision,
        "MODEL_ALLOW_PATTERNS": ",".join(hub.allow_patterns),
        "MODEL_IGNORE_PATTERNS": ",".join(hub.ignore_patterns),
    }
    # ModelScope uses other tokens; Hugging Face's token must not be sent to another company.
    tokens = HUB_TOKENS if hub.name == "Huggingface" else ()
    return Source(
        kind="hub",
        address=hub.model_id,
        path=path,
        remote=hub.model_id,
        loader=_values(variables),
        credentials=tuple(_secret(name, HUB_SECRET, "HF_TOKEN") for name in tokens),
        filename=hub.filename or "",
        revision=hub.revision,
        hub=hub.name,
    )


def uri_source(uri: str) -> Source:
    """Read an address. Raises ValueError with its error."""
    scheme, _, address = uri.partition("://")
    if re.match(URI, uri) is None or "://" in address:
        raise ValueError(
            f"`{uri[:128]}` is none of oss://bucket.endpoint/path, s3://bucket/path, gcs://bucket/path, "
            "host:///path, ollama://name:tag"
        )
    try:
        check_characters(uri.replace(" ", ""))
        if scheme.lower() in ("oss", "s3", "gcs"):
            # Loaders build a host name from bucket and endpoint; an invalid one could name another host.
            read_authority(address.partition("/")[0])
    except AddressInvalid as error:
        raise ValueError(f"`{shown(uri)[:128]}` {error}") from None
    last = address.rstrip("/").rpartition("/")[2]
    path = MODELS + (last if ".gguf" in address else f"models--{last}")
    match scheme.lower():
        case "ollama":
            return Source(kind="ollama", address=uri, path=path, remote=uri)
        case "host":
            if not address.startswith("/") or ".." in address.split("/"):
                raise ValueError(f"`{uri[:128]}` has no absolute path; write host:///path, without `..`")
            return Source(kind="host", address=uri, path=address, remote=address, host_path=address)
        case "oss":
            where, _, key = address.partition("/")
            bucket, _, endpoint = where.partition(".")
            return _store("oss", uri, path, {"ENDPOINT": endpoint, "BUCKET": bucket, "MODEL_PATH": key})
        case "s3":
            bucket, _, key = address.partition("/")
            return _store("s3", uri, path, {"BUCKET": bucket, "MODEL_PATH": key})
        case _:
            bucket, _, key = address.partition("/")
            return _store("gcs", uri, path, {"BUCKET": bucket, "MODEL_PATH": key})


def _store(kind: Literal["oss", "s3", "gcs"], uri: str, path: str, where: dict[str, str]) -> Source:
    secret, keys = STORE_SECRETS[kind]
    return Source(
        kind=kind,
        address=uri,
        path=path,
        remote=uri,
        loader=_values({"MODEL_SOURCE_TYPE": "objstore", "PROVIDER": kind.upper(), **where}),
        credentials=tuple(_secret(key, secret, key) for key in keys),
    )


def _values(variables: dict[str, str]) -> tuple[Json, ...]:
    return tuple({"name": name, "value": value} for name, value in variables.items() if value)


def _secret(variable: str, secret: str, key: str) -> Json:
    return {"name": variable, "valueFrom": {"secretKeyRef": {"name": secret, "key": key, "optional": True}}}
