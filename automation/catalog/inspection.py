"""Reads what a model is from its header: a local file, a web address, or a file on Hugging Face.

Called by `herdsman inspect`. Of a remote file only the first MiBs are requested (`agent.server.models.header_probe`).
Every failure is an InspectionFailed with the next step.
"""

from __future__ import annotations

import contextlib
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

from agent.server.models import remote
from agent.server.models.gguf_header import Header, Limits
from agent.server.models.header_probe import probe_header
from agent.server.models.source_access import Credentials, Signer
from agent.sources.errors import (
    FileError,
    GgufInvalid,
    NeedMoreBytes,
    SourceNotFound,
    SourceUnauthorized,
    SourceUnreachable,
)
from agent.sources.source_policy import SourcePolicy
from automation.catalog.entries import CatalogError
from program.desired.errors import SpecInvalid
from program.desired.facts import MemoryFacts
from program.desired.hub import HUB, Hub
from program.desired.model import GgufFacts, SourceKind
from program.desired.web_address import AddressInvalid, WebAddress
from program.dialects.llmkube.parse.source import parse_source
from program.runtimes.llamacpp_memory import Serving, model_memory

TIMEOUT_S = 30.0
CONTEXTS = (4_096, 8_192, 32_768, 131_072)
"""Tokens; the trained context is added, and longer ones are left out."""
MOST_PARTS = 64
_LIMITS = Limits(template_bytes=256 << 10)
_PART = re.compile(r"-(?P<number>\d{5})-of-(?P<count>\d{5})(?P<end>\.gguf)$", re.IGNORECASE)
_ANYWHERE = SourcePolicy(allowed_remote_hosts=("0.0.0.0/0", "::/0"))
"""The user names the server, and the request goes out from the user's machine. So private servers are allowed."""


class InspectionFailed(CatalogError):
    """A source cannot be inspected."""


@dataclass(frozen=True)
class Inspection:
    """A model's header, and the size of its files."""

    source: str
    facts: GgufFacts
    size_bytes: int
    """All files together."""
    parts: int
    """Number of files of a split model; 1 for one file."""
    template: str
    """The chat template; empty if the header has none."""

    @property
    def weights_bytes(self) -> int:
        """The size of the weights. The first header of a split model describes only the tensors of the first file."""
        return self.size_bytes if self.parts > 1 else self.facts.weights_bytes or self.size_bytes

    @property
    def cache_layers(self) -> int | None:
        """Layers with a KV cache. The others are recurrent, or have no attention."""
        counts = self.facts.head_counts_kv
        return sum(map(bool, counts)) if counts else self.facts.layer_count

    def contexts(self, asked: int | None = None) -> list[int]:
        """Return the contexts to estimate, in tokens: the asked one, or some usual ones up to the trained one."""
        if asked is not None:
            return [asked]
        trained = self.facts.context_length
        usual = [tokens for tokens in CONTEXTS if trained is None or tokens < trained]
        return [*usual, trained] if trained else usual

    def memory(self, context: int) -> MemoryFacts:
        """Estimate the memory of llama-server with this context and its other defaults."""
        return model_memory(self.facts, Serving(context=context), weights_bytes=self.weights_bytes)


def inspect_source(source: str, *, hub_url: str, environment: Mapping[str, str]) -> Inspection:
    """Inspect a file, an http(s) address, or `hf://org/repo[@revision]/file.gguf`. Raises InspectionFailed.

    `environment` may have HF_TOKEN for gated repositories and SOURCE_TOKEN for other servers.
    """
    if "://" not in source or source.lower().startswith("file://"):
        return _local(source, Path(re.sub(r"(?i)^file://(localhost)?", "", source)).expanduser())
    try:
        found = parse_source(source)
    except SpecInvalid as error:
        raise InspectionFailed(f"`{source[:200]}` {error.why}") from None
    if found.kind is SourceKind.REPOSITORY:
        revision = f"@{found.revision}" if found.revision else ""
        raise InspectionFailed(
            f"`{source[:200]}` names a repository, and only one file can be inspected",
            hint=f"add its name: `hf://{found.repository}{revision}/FILE.gguf`. {_files_page(found.repository)}",
        )
    if found.kind is not SourceKind.HTTP:
        raise InspectionFailed(
            f"`{source[:200]}` can be read only by pods or hosts", hint="give a file, an https address, or hf://…"
        )
    address, signer, is_hub = _located(found.download_address, hub_url, environment)
    return _remote(source, address, signer, on_hub=is_hub)


def size_of_source(source: str, *, hub_url: str, environment: Mapping[str, str]) -> int | None:
    """Return the size in bytes of one file at an http(s) or `hf://` address; None if the server does not say it.

    Raises InspectionFailed.
    """
    try:
        found = parse_source(source)
    except SpecInvalid as error:
        raise InspectionFailed(f"`{source[:200]}` {error.why}") from None
    address, signer, is_hub = _located(found.download_address, hub_url, environment)
    with _translated(address, on_hub=is_hub):
        return remote.stat(address, policy=_ANYWHERE, timeout_s=TIMEOUT_S, signer=signer).size_bytes


def _located(text: str, hub_url: str, environment: Mapping[str, str]) -> tuple[WebAddress, Signer | None, bool]:
    """Return the address of a download, its credentials, and whether it is on the hub."""
    try:
        hub = Hub.at(hub_url)
        address = hub.location(WebAddress.parse(text))
    except AddressInvalid as error:
        raise InspectionFailed(f"the address {error}") from None
    is_hub = hub.may_have_token(address)
    return address, Credentials.of(environment).for_web(hub=is_hub), is_hub


def _local(source: str, path: Path) -> Inspection:
    try:
        paths = [path.with_name(name) for name in part_names(path.name)]
        with path.open("rb") as file:
            header = Header(file, _LIMITS)
            header.read()
        sizes = [each.stat().st_size for each in paths]
    except FileNotFoundError as error:
        raise InspectionFailed(f"there is no file {error.filename}", hint=_near_files(path)) from None
    except OSError as error:
        raise InspectionFailed(f"{path} cannot be read: {error.strerror or error}") from None
    except NeedMoreBytes:
        raise InspectionFailed(
            f"{path} ends inside its header", hint="the download is incomplete; fetch the file again"
        ) from None
    except GgufInvalid as error:
        raise InspectionFailed(f"{path}: {error.message}", hint="only GGUF files can be inspected") from None
    return Inspection(source, header.facts(), sum(sizes), len(paths), header.template)


def _remote(source: str, address: WebAddress, signer: Signer | None, *, on_hub: bool) -> Inspection:
    with _translated(address, on_hub=on_hub):
        found = probe_header(address, policy=_ANYWHERE, timeout_s=TIMEOUT_S, signer=signer, limits=_LIMITS)
        folder, _, name = address.path.rpartition("/")
        names = part_names(name)
        size = found.size_bytes or 0
        if len(names) > 1:
            query = f"?{address.query}" if address.query else ""
            origin = f"{address.scheme}://{address.authority}"
            parts = [WebAddress.parse(f"{origin}{folder}/{each}{query}") for each in names]
            states = [remote.stat(each, policy=_ANYWHERE, timeout_s=TIMEOUT_S, signer=signer) for each in parts]
            size = sum(state.size_bytes or 0 for state in states)
    return Inspection(source, found.facts, size, len(names), found.template)


@contextlib.contextmanager
def _translated(address: WebAddress, *, on_hub: bool) -> Iterator[None]:
    """Turn each failure of a request into an InspectionFailed with the next step."""
    try:
        yield
    except SourceUnauthorized as error:
        raise InspectionFailed(error.message, hint=_unauthorized_hint(address, on_hub=on_hub)) from None
    except SourceNotFound as error:
        page = _files_page(_repository_of(address)) if on_hub else ""
        raise InspectionFailed(
            error.message, hint=f"check the name: it may have been renamed or removed. {page}".strip()
        ) from None
    except SourceUnreachable as error:
        raise InspectionFailed(
            error.message,
            hint="check the connection; HERDSMAN_HUB_URL names a mirror of Hugging Face; a file that is already here "
            "can be inspected by its path",
        ) from None
    except GgufInvalid as error:
        raise InspectionFailed(error.message, hint="only GGUF files can be inspected") from None
    except FileError as error:
        raise InspectionFailed(error.message) from None


def part_names(name: str) -> list[str]:
    """Return the names of all files of a split model, from the name of one of them; else only the name itself."""
    match = _PART.search(name)
    count = int(match["count"]) if match else 1
    if match is None or not 1 < count <= MOST_PARTS:
        return [name]
    return [f"{name[: match.start()]}-{number:05}-of-{match['count']}{match['end']}" for number in range(1, count + 1)]


def _unauthorized_hint(address: WebAddress, *, on_hub: bool) -> str:
    if not on_hub:
        return "set SOURCE_TOKEN to a token of this server"
    repository = _repository_of(address)
    return (
        f"the repository is gated, private, or does not exist. Check the name, accept its licence at "
        f"{HUB}/{repository}, and set HF_TOKEN to a token that may read it"
    )


def _repository_of(address: WebAddress) -> str:
    return "/".join(address.path.strip("/").split("/")[:2])


def _files_page(repository: str) -> str:
    return f"{HUB}/{repository}/tree/main lists the files"


def _near_files(path: Path) -> str:
    try:
        near = sorted(each.name for each in path.parent.iterdir() if each.suffix == ".gguf")[:5]
    except OSError:
        return f"there is no directory {path.parent} either"
    if near:
        return f"{path.parent} has {', '.join(near)}"
    return "for a file on Hugging Face write `hf://org/repo/FILE.gguf`; `herdsman catalog list` shows models by id"
