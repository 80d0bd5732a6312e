"""Probes the source of a model once: whether it exists, its size, its header, its checksum.

Called by the threads of `model_probe`. Calls `agent.server.models.header_probe` and `remote` for remote sources, and
`agent.server.models.gguf_header` for local files. Reads credentials only by the reader that the caller passes.
"""

from __future__ import annotations

import hashlib
import io
import threading
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

from agent.server.models import remote
from agent.server.models.gguf_header import read_header
from agent.server.models.header_probe import probe_header
from agent.server.models.model_store import sha256_of, storing
from agent.server.models.remote import RemoteFile
from agent.server.models.source_access import Credentials, Signer
from agent.sources.deadline import Deadline
from agent.sources.errors import (
    FileError,
    GgufInvalid,
    NeedMoreBytes,
    SourceNotFound,
    SourceRefused,
)
from agent.sources.source_policy import SourcePolicy
from automation.models.source_credentials import SecretUnreadable
from program.desired.facts import ProbeFacts
from program.desired.hub import Hub
from program.desired.model import GgufFacts, ModelSource, SourceKind
from program.desired.web_address import AddressInvalid, WebAddress
from program.dialects.llmkube.parse.source import file_url, object_key

ReadSecret = Callable[[str, str], Credentials]
"""Reads the credentials of a namespace's Secret; raises SecretUnreadable."""
_LONGEST_ETAG = 256
_PARALLEL_STATS = 8
_MORE_FOR_EACH_FILE_S = 0.05
"""The time for each file of a set: a set of a thousand files takes longer than one file."""


@dataclass(frozen=True)
class SourceProbeSettings:
    """Limits of one probe."""

    timeout_s: float = 15.0
    """The timeout of one probe of a remote source, from the resolution of its name to the last byte. A set has 0.05 s
    more for each of its files. A service waits for the first probe."""
    small_file_bytes: int = 8 << 20
    """A remote file of up to this size is fetched to check its SHA-256; larger ones are checked where they are used."""
    hashed_unasked_bytes: int = 64 << 20
    """A local file of up to this size is hashed even without a requested SHA-256."""


class _RemoteFile(NamedTuple):
    """One remote file, and the credentials for it."""

    url: WebAddress
    signer: Signer | None


class SourceProbe:
    """Probes sources that one policy allows. Thread-safe."""

    def __init__(
        self,
        policy: SourcePolicy,
        *,
        hub_url: str,
        read_secret: ReadSecret | None,
        settings: SourceProbeSettings,
        cancel: threading.Event,
    ) -> None:
        self.policy = policy
        self._hub = Hub.at(hub_url)
        self._read_secret = read_secret
        self._settings = settings
        self._cancel = cancel
        self._lock = threading.Lock()
        self._hashes: dict[tuple[str, int, int, int], str] = {}

    def probe(
        self,
        source: ModelSource,
        *,
        sha256: str | None,
        previous: ProbeFacts | None,
        model_format: str = "gguf",
        files: Sequence[str] = (),
        secret: str = "",
    ) -> ProbeFacts:
        """Probe a source now. Blocks. Errors of the source or the network are results, and not raised.

        `previous` is the last result, which is returned if size and ETag are the same. For a set of files, the header
        is that of the first file, the size is the sum, and the ETag changes with any file.
        """
        try:
            if source.kind is SourceKind.FILE:
                return self._local(source, sha256, model_format)
            if source.kind is SourceKind.CLAIM or (source.kind is SourceKind.REPOSITORY and not files):
                return ProbeFacts(
                    outcome="unreachable", source=source.address, message="only pods can read this source"
                )
            places = self._places(source, files, self._credentials(secret))
            if len(places) > 1:
                return self._remote_set(source, places, previous, model_format)
            return self._remote(source, places[0], sha256, previous, model_format)
        except SecretUnreadable as error:
            return ProbeFacts(outcome="unreachable", source=source.address, reason=error.reason, message=error.message)
        except SourceRefused as error:
            return _failed("refused", error, source)
        except GgufInvalid as error:
            return _failed("not-gguf" if error.conclusive else "unreachable", error, source)
        except FileError as error:
            return _failed("unreachable", error, source)

    # --- remote -------------------------------------------------------------------------------------------------------

    def _credentials(self, secret: str) -> Credentials:
        if not secret:
            return Credentials()
        namespace, _, name = secret.partition("/")
        if self._read_secret is None:
            raise SecretUnreadable("SourceSecretNotReadable", f"only pods read Secret `{name}`")
        return self._read_secret(namespace, name)

    def _places(self, source: ModelSource, files: Sequence[str], credentials: Credentials) -> list[_RemoteFile]:
        if source.kind is SourceKind.S3:
            keys = [object_key(source, file) for file in files] or [object_key(source)]
            try:
                return [_RemoteFile(credentials.s3_address(source.bucket, key), credentials.for_s3()) for key in keys]
            except AddressInvalid as error:
                raise SourceRefused(f"the address of `{source.address[:80]}` at AWS_ENDPOINT_URL {error}") from None
        if source.kind is SourceKind.REPOSITORY:
            return [self._web_place(file_url(source, file, self._hub.url), credentials) for file in files]
        return [self._web_place(source.download_address, credentials)]

    def _web_place(self, url: str, credentials: Credentials) -> _RemoteFile:
        try:
            address = self._hub.location(WebAddress.parse(url))
        except AddressInvalid as error:
            raise SourceRefused(f"the source {error}") from None
        return _RemoteFile(address, credentials.for_web(hub=self._hub.may_have_token(address)))

    def _remote(
        self,
        source: ModelSource,
        place: _RemoteFile,
        sha256: str | None,
        previous: ProbeFacts | None,
        model_format: str,
    ) -> ProbeFacts:
        timeout_s, policy = self._settings.timeout_s, self.policy
        deadline = Deadline(timeout_s)
        if sha256 or model_format != "gguf" or (previous is not None and previous.outcome == "read"):
            file = remote.stat(place.url, policy=policy, timeout_s=timeout_s, signer=place.signer)
            if _unchanged(previous, file.size_bytes, _etag(file)):
                assert previous is not None
                return previous
            if sha256 and file.size_bytes is not None and file.size_bytes <= self._settings.small_file_bytes:
                return self._small(source, place, sha256, model_format, deadline)
            if model_format != "gguf":
                return _read(source, None, file.size_bytes, _etag(file), "")
        # The response for the first range of the header also has size and ETag, which saves a request.
        peek = probe_header(place.url, policy=policy, timeout_s=deadline.left_s(place.url.shown), signer=place.signer)
        return _read(source, peek.facts, peek.size_bytes, peek.etag, "")

    def _small(
        self, source: ModelSource, place: _RemoteFile, sha256: str, model_format: str, deadline: Deadline
    ) -> ProbeFacts:
        data, file = remote.fetch_small(
            place.url,
            policy=self.policy,
            max_bytes=self._settings.small_file_bytes,
            timeout_s=deadline.left_s(place.url.shown),
            signer=place.signer,
        )
        digest, shown = hashlib.sha256(data).hexdigest(), place.url.shown
        facts = _read(source, _header_of(data, model_format, shown), len(data), _etag(file), digest)
        return _checked(facts, sha256, shown)

    def _remote_set(
        self, source: ModelSource, places: list[_RemoteFile], previous: ProbeFacts | None, model_format: str
    ) -> ProbeFacts:
        """Probe a set: the state of each file, a few at a time, and the header of the first."""
        deadline = Deadline(self._settings.timeout_s + _MORE_FOR_EACH_FILE_S * len(places))

        def state(place: _RemoteFile) -> RemoteFile:
            return remote.stat(
                place.url, policy=self.policy, timeout_s=deadline.left_s(place.url.shown), signer=place.signer
            )

        with ThreadPoolExecutor(min(_PARALLEL_STATS, len(places)), thread_name_prefix="model-set") as pool:
            states = list(pool.map(state, places))
        sizes = [file.size_bytes for file in states]
        size = sum(known for known in sizes if known is not None) if None not in sizes else None
        versions = "\n".join(f"{file.size_bytes} {file.etag or file.last_modified or ''}" for file in states)
        etag = f'"{hashlib.sha256(versions.encode()).hexdigest()[:32]}"'
        if _unchanged(previous, size, etag):
            assert previous is not None
            return previous
        gguf = None
        if model_format == "gguf":
            first = places[0]
            gguf = probe_header(
                first.url, policy=self.policy, timeout_s=deadline.left_s(first.url.shown), signer=first.signer
            ).facts
        return _read(source, gguf, size, etag, "")

    # --- local --------------------------------------------------------------------------------------------------------

    def _local(self, source: ModelSource, sha256: str | None, model_format: str) -> ProbeFacts:
        try:
            real = self.policy.allowed_path(source.path)
        except SourceNotFound:
            raise SourceNotFound(f"`{source.path}` does not exist on this machine; it may exist on a node") from None
        if real.is_dir():
            if model_format == "gguf":
                raise GgufInvalid(f"`{source.path}` is a directory; a gguf model is one file")
            return _read(source, None, None, None, "")
        if not real.is_file():
            raise SourceNotFound(f"`{source.path}` is neither a file nor a directory")
        with storing(real):
            size = real.stat().st_size
            gguf = None
            if model_format == "gguf":
                with real.open("rb") as file:
                    gguf = _header(file, source.path)
            wants_hash = bool(sha256) or size <= self._settings.hashed_unasked_bytes
            digest = self._hash(real) if wants_hash else ""
        facts = _read(source, gguf, size, None, digest)
        return _checked(facts, sha256, source.path) if sha256 else facts

    def _hash(self, path: Path) -> str:
        """Return the digest of a local file, cached until the file changes."""
        stat = path.stat()
        identity = (str(path), stat.st_size, stat.st_mtime_ns, stat.st_ino)
        with self._lock:
            known = self._hashes.get(identity)
        if known is None:
            known = sha256_of(path, self._cancel)
            with self._lock:
                self._hashes = {k: v for k, v in self._hashes.items() if k[0] != identity[0]} | {identity: known}
        return known


def _etag(file: RemoteFile) -> str | None:
    return file.etag[:_LONGEST_ETAG] if file.etag else None


def _unchanged(previous: ProbeFacts | None, size_bytes: int | None, etag: str | None) -> bool:
    return (
        previous is not None
        and previous.outcome == "read"
        and size_bytes is not None
        and (previous.size_bytes, previous.etag) == (size_bytes, etag)
    )


def _read(
    source: ModelSource, gguf: GgufFacts | None, size_bytes: int | None, etag: str | None, sha256: str
) -> ProbeFacts:
    return ProbeFacts(
        outcome="read",
        source=source.address,
        gguf=gguf,
        size_bytes=size_bytes,
        etag=etag[:_LONGEST_ETAG] if etag else None,
        sha256=sha256,
    )


def _failed(outcome: str, error: FileError, source: ModelSource) -> ProbeFacts:
    return ProbeFacts.model_validate(
        {"outcome": outcome, "source": source.address, "reason": str(error.reason), "message": error.message}
    )


def _checked(facts: ProbeFacts, sha256: str, what: str) -> ProbeFacts:
    """Return facts of a file with another digest as a mismatch."""
    if facts.sha256 == sha256.lower():
        return facts
    message = f"spec.sha256: the SHA-256 of {what} is {facts.sha256}, not {sha256.lower()}"
    return facts.model_copy(update={"outcome": "mismatch", "reason": "ChecksumMismatch", "message": message})


def _header_of(data: bytes, model_format: str, what: str) -> GgufFacts | None:
    return _header(io.BytesIO(data), what) if model_format == "gguf" else None


def _header(file: io.BufferedIOBase, what: str) -> GgufFacts:
    try:
        return read_header(file)
    except NeedMoreBytes as error:
        raise GgufInvalid(f"{what} ends inside its GGUF header, which needs {error.needed} bytes") from None
    except GgufInvalid as error:
        raise GgufInvalid(f"{what}: {error.message}", conclusive=error.conclusive) from None
