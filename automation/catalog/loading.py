"""Reads a catalog: the one of this package, a file, or an https address.

Called by the commands that take an id of a model. A catalog from elsewhere is checked as strictly as a manifest.
"""

from __future__ import annotations

from importlib import resources
from pathlib import Path

import pydantic
import yaml

from agent.server.models.remote import fetch_small
from agent.sources.errors import FileError
from agent.sources.source_policy import SourcePolicy
from automation.catalog.entries import Catalog, CatalogError
from kubeapi import yaml_text
from program.desired.web_address import AddressInvalid, WebAddress

LARGEST_BYTES = 4 << 20
"""Size of a catalog at most. A thousand models have about 1 MiB."""
FETCH_TIMEOUT_S = 20.0
_SHOWN_ERRORS = 5
_FILE = "models.yaml"
_ANYWHERE = SourcePolicy(allowed_remote_hosts=("0.0.0.0/0", "::/0"))
"""The user names the server, and the request goes out from the user's machine. So private servers are allowed."""


class CatalogInvalid(CatalogError):
    """A catalog cannot be read, or is not in the form of a catalog."""


def load(source: str = "") -> Catalog:
    """Return Herdsman's catalog, or the one at `source`: a path, or an https address. Raises CatalogInvalid."""
    if not source:
        return parse((resources.files(__package__) / _FILE).read_text("utf-8"), name="Herdsman's catalog")
    if "://" in source:
        return parse(_fetched(source), name=source)
    return parse(_read(Path(source).expanduser()), name=source)


def parse(text: str, *, name: str) -> Catalog:
    """Parse a catalog in YAML or JSON; `name` is for messages. Raises CatalogInvalid with each error's place."""
    try:
        return Catalog.model_validate(yaml_text.load(text))
    except yaml.YAMLError as error:
        raise CatalogInvalid(f"{name} is not valid YAML: {error}") from None
    except pydantic.ValidationError as error:
        found = error.errors(include_url=False)
        lines = [f"{_place(each['loc'])}: {each['msg']}" for each in found[:_SHOWN_ERRORS]]
        more = [f"… and {len(found) - _SHOWN_ERRORS} more"] if len(found) > _SHOWN_ERRORS else []
        raise CatalogInvalid(
            "\n  ".join([f"{name} is not a catalog:", *lines, *more]),
            hint="docs/how-to/catalog.md describes the form of a catalog",
        ) from None


def _place(parts: tuple[int | str, ...]) -> str:
    text = "".join(f"[{part}]" if isinstance(part, int) else f".{part}" for part in parts)
    return text.lstrip(".") or "the document"


def _read(path: Path) -> str:
    try:
        with path.open("rb") as file:
            data = file.read(LARGEST_BYTES + 1)
    except OSError as error:
        raise CatalogInvalid(f"the catalog {path} cannot be read: {error.strerror or error}") from None
    if len(data) > LARGEST_BYTES:
        raise CatalogInvalid(f"the catalog {path} is larger than {LARGEST_BYTES >> 20} MiB")
    return _decoded(data, str(path))


def _fetched(url: str) -> str:
    try:
        address = WebAddress.parse(url)
    except AddressInvalid as error:
        raise CatalogInvalid(f"the address of the catalog {error}") from None
    if address.scheme != "https":
        raise CatalogInvalid(
            f"the catalog {address.shown} is not fetched over http, because anybody on the way could change it",
            hint="use its https address, or download it and name the file",
        )
    try:
        data, _ = fetch_small(address, policy=_ANYWHERE, max_bytes=LARGEST_BYTES, timeout_s=FETCH_TIMEOUT_S)
    except FileError as error:
        raise CatalogInvalid(
            f"the catalog cannot be fetched: {error.message}",
            hint="without --catalog the commands use the catalog of this version, which needs no network",
        ) from None
    return _decoded(data, address.shown)


def _decoded(data: bytes, name: str) -> str:
    try:
        return data.decode("utf-8")
    except UnicodeDecodeError:
        raise CatalogInvalid(f"the catalog {name} is not UTF-8 text") from None
