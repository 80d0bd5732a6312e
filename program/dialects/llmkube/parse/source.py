"""Parses `Model.spec.source`, and derives the cache key and the cached file's name as LLMKube does. Pure."""

from __future__ import annotations

import hashlib
import re
from collections.abc import Sequence
from urllib.parse import quote, unquote

from program.desired.errors import SpecInvalid
from program.desired.hub import HUB, HUB_HOSTS, Hub
from program.desired.keys import is_dns_label
from program.desired.model import ModelSource, SourceKind
from program.desired.web_address import AddressInvalid, WebAddress, check_characters

FIELD = "spec.source"
_HUB_FILE_ROUTES = frozenset({"resolve", "blob", "raw"})
_REPOSITORY_PART = re.compile(r"[A-Za-z0-9][\w.\-]*", re.ASCII)
_REVISION = re.compile(r"[A-Za-z0-9][\w.\-/]*", re.ASCII)
# A path after a revision that ends with one of these is a file of the repository. Everything else belongs to the
# revision, whose name may contain slashes.
_WEIGHTS = (".gguf", ".safetensors", ".bin", ".pt", ".pth", ".onnx", ".npz")
_FORMATS_OF_DIRECTORIES = ("safetensors", "pytorch", "mlx")
_BUCKET = re.compile(r"[a-z0-9][a-z0-9.\-]{1,61}[a-z0-9]", re.ASCII)
_PATTERN = re.compile(r"[*?\[\]{}]")
_SCHEME = re.compile(r"([A-Za-z][A-Za-z0-9+.\-]*)://")
_UNSAFE_IN_NAMES = re.compile(r"[^A-Za-z0-9._-]+", re.ASCII)
_DASHES = re.compile(r"-{2,}")
_LONGEST_SET = 1000
_LONGEST_ENTRY = 512
_LONGEST_PART = 200
_LONGEST_STEM = 200
"""A file name may have 255 bytes, including `.gguf` and the `.partial` of a download after the stem."""


def parse_source(
    address: str,
    *,
    format: str = "gguf",  # noqa: A002 - the CRD's own name for it
    files: bool = False,
) -> ModelSource:
    """Parse the address of a model's weights. The case of the scheme does not count.

    `format` is the Model's `spec.format`: a `gguf` is one file, so a path to a directory is refused for it. `files` is
    True if the Model lists files; then an S3 address is their prefix. Raises SpecInvalid with field `spec.source` for
    everything that Herdsman cannot serve.
    """
    if not address:
        raise _invalid("is empty; name a URL, a path, `pvc://claim/path` or `org/repo`")
    try:
        check_characters(address)
    except AddressInvalid as error:
        raise _invalid(str(error)) from None
    match = _SCHEME.match(address)
    if match is None:
        if address.startswith("/"):
            return _file(address, address, format)
        return _repository(address, address)
    scheme, rest = match[1].lower(), address[match.end() :]
    if scheme in ("http", "https"):
        return _web(address)
    if scheme == "file":
        return _file(address, rest, format)
    if scheme == "pvc":
        return _claim(address, rest, format)
    if scheme == "hf":
        return _hub_address(address, rest)
    if scheme == "s3":
        return _s3(address, rest, format, prefix=files)
    raise _invalid(f"scheme `{scheme}` is not supported; use https, http, file, pvc, hf or s3")


def file_set(source: ModelSource, files: Sequence[str], mmproj: str) -> tuple[str, ...]:
    """List the files of a Model with `spec.files`, each once, the one that the engine opens first; empty without files.

    Raises SpecInvalid with reason InvalidFileSet if the source cannot have several files, or if a file could leave its
    directory.
    """
    if not files:
        if mmproj:
            raise _unsafe(
                "spec.mmproj",
                "needs spec.files: list the files of the model there, first the one that the engine opens",
            )
        return ()
    if source.kind not in (SourceKind.REPOSITORY, SourceKind.S3):
        raise _unsafe("spec.files", "needs a source `hf://org/repo` or `s3://bucket/prefix` that contains the files")
    if len(files) > _LONGEST_SET:
        raise _unsafe("spec.files", f"has {len(files)} entries; at most {_LONGEST_SET} are allowed")
    for index, entry in enumerate(files):
        _check_entry(entry, field=f"spec.files[{index}]")
        if entry in files[:index]:
            raise _unsafe(f"spec.files[{index}]", f"`{entry}` is listed twice")
    if mmproj:
        _check_entry(mmproj, field="spec.mmproj")
    entries = tuple(dict.fromkeys((*files, *([mmproj] if mmproj else []))))
    folders = {entry[:at] for entry in entries for at, character in enumerate(entry) if character == "/"}
    for entry in entries:
        if entry in folders:
            raise _unsafe("spec.files", f"`{entry}` would be both a file and a folder")
    return entries


def cache_key(address: str) -> str:
    """Return the name of a source's cache directory: 16 hex digits of the SHA-256 of the address as written."""
    return hashlib.sha256(address.encode()).hexdigest()[:16]


def file_name(gguf_name: str, model_name: str) -> str:
    """Name the cached file after the GGUF's `general.name`, else the Model, else `model`; always ends in `.gguf`."""
    return f"{_sanitised(gguf_name) or _sanitised(model_name) or 'model'}.gguf"


def needs_cache(source: ModelSource, files: Sequence[str] = ()) -> bool:
    """Return whether pods keep a copy in the model cache.

    Claims and directories of nodes are mounted. The engine fetches a repository itself, unless the Model lists `files`.
    """
    if source.kind is SourceKind.FILE:
        return not source.directory
    return source.kind in (SourceKind.HTTP, SourceKind.S3) or (source.kind is SourceKind.REPOSITORY and bool(files))


def hub_location(url: str, hub_url: str) -> str:
    """Return the mirror's address of a file of Hugging Face if `hub_url` is a mirror; else the address unchanged."""
    hub = Hub.at(hub_url)
    try:
        address = WebAddress.parse(url)
    except AddressInvalid:
        return url
    return hub.location(address).text if hub.is_mirror and address.host in HUB_HOSTS else url


def repository_url(source: ModelSource, hub_url: str = HUB) -> str:
    """Return the base URL of the files of a REPOSITORY; ends with a slash."""
    revision = quote(source.revision or "main", safe="")
    return f"{hub_url.rstrip('/') or HUB}/{source.repository}/resolve/{revision}/"


def file_url(source: ModelSource, entry: str, hub_url: str = HUB) -> str:
    """Return the URL of one file of a REPOSITORY."""
    return repository_url(source, hub_url) + quote(entry)


def object_key(source: ModelSource, entry: str = "") -> str:
    """Return the key of an S3 source's object, or of one of its files."""
    if not entry:
        return source.path
    return f"{source.path.rstrip('/')}/{entry}" if source.path.strip("/") else entry


def _invalid(why: str) -> SpecInvalid:
    return SpecInvalid(field=FIELD, why=why)


def _unsafe(field: str, why: str) -> SpecInvalid:
    return SpecInvalid(field=field, why=why, reason="InvalidFileSet")


def _check_entry(entry: str, *, field: str) -> None:
    """Refuse an entry that is not the plain relative path of one file."""
    shown = entry[:64]
    if not entry:
        raise _unsafe(field, "is empty")
    if len(entry.encode()) > _LONGEST_ENTRY:
        raise _unsafe(field, f"`{shown}…` is longer than {_LONGEST_ENTRY} bytes")
    if entry.startswith("/"):
        raise _unsafe(field, f"`{shown}` must be relative to the source")
    if "\\" in entry or not entry.isprintable() or entry != entry.strip():
        raise _unsafe(field, f"{shown!r} contains a backslash, a control character or white space at an end")
    if _PATTERN.search(entry):
        raise _unsafe(field, f"`{shown}` looks like a pattern; name each file")
    for part in entry.split("/"):
        if part in ("", ".", ".."):
            raise _unsafe(field, f"`{shown}` must not have empty, `.` or `..` parts")
        if part.startswith("."):
            raise _unsafe(
                field, f"`{shown}` has a part that begins with a dot; such names are reserved for the downloader"
            )
        if len(part.encode()) > _LONGEST_PART:
            raise _unsafe(field, f"`{shown}…` has a part longer than {_LONGEST_PART} bytes")


def _sanitised(name: str) -> str:
    dashed = _DASHES.sub("-", _UNSAFE_IN_NAMES.sub("-", name))
    return dashed.strip("-._")[:_LONGEST_STEM].rstrip("-._")


def _web(address: str) -> ModelSource:
    try:
        parts = WebAddress.parse(address)
    except AddressInvalid as error:
        hint = "; put a token in the Secret of spec.sourceSecretRef instead" if "password" in str(error) else ""
        raise _invalid(f"{error}{hint}") from None
    if parts.host in HUB_HOSTS:
        return _hub_page(address, parts)
    return ModelSource(kind=SourceKind.HTTP, address=address, path=unquote(parts.path.rsplit("/", 1)[-1]))


def _hub_page(address: str, parts: WebAddress) -> ModelSource:
    """Distinguish a single file on Hugging Face from the pages of a repository."""
    segments = [segment for segment in parts.path.split("/") if segment]
    if segments and segments[0] in ("datasets", "spaces"):
        raise _invalid(f"names one of Hugging Face's {segments[0]}, not a model")
    if len(segments) > 4 and segments[2] in _HUB_FILE_ROUTES and not parts.path.endswith("/"):
        url = ""
        if segments[2] == "blob":
            # This is the page that shows the file, not the file.
            segments[2] = "resolve"
            first = address.index("/", len("https://"))
            query = address[first + len(parts.path) :]
            url = f"{parts.scheme}{address[len(parts.scheme) : first]}/{'/'.join(segments)}{query}"
        return ModelSource(kind=SourceKind.HTTP, address=address, path=unquote(segments[-1]), url=url)
    repository = "/".join(segments[:2])
    if len(segments) in (1, 2):
        return _repository(address, repository)
    if len(segments) == 4 and segments[2] in (*_HUB_FILE_ROUTES, "tree"):
        return _repository(address, f"{repository}@{unquote(segments[3])}")
    raise _invalid("is neither a file nor a repository's page on Hugging Face; use `…/resolve/<revision>/<file>`")


def _hub_address(address: str, rest: str) -> ModelSource:
    """Parse the part after `hf://`: `org/repo[@revision]`, or a file in it, `org/repo[@revision]/path/to/file.gguf`."""
    head, at, tail = rest.partition("@")
    if not at:
        parts = head.split("/")
        if len(parts) < 3 or not all(parts):
            return _repository(address, rest)
        repository, revision, file = "/".join(parts[:2]), "", "/".join(parts[2:])
    else:
        segments = tail.split("/")
        first = 3 if segments[0] == "refs" else 1
        if len(segments) <= first or not segments[-1].lower().endswith(_WEIGHTS):
            return _repository(address, rest)
        repository, revision, file = head, "/".join(segments[:first]), "/".join(segments[first:])
    found = _repository(address, f"{repository}{at}{revision}")
    if any(part in ("", ".", "..") for part in file.split("/")):
        raise _invalid(f"`{file}` is not the path of a file in the repository")
    name = file.rsplit("/", 1)[-1]
    return ModelSource(kind=SourceKind.HTTP, address=address, path=name, url=file_url(found, file))


def _s3(address: str, rest: str, model_format: str, *, prefix: bool) -> ModelSource:
    bucket, _, key = rest.partition("/")
    if not _BUCKET.fullmatch(bucket) or ".." in bucket:
        raise _invalid(f"`{bucket}` is not the name of a bucket; write `s3://bucket/path/to/model.gguf`")
    if any(part in (".", "..") for part in key.split("/")) or "//" in key or key.startswith("/"):
        raise _invalid("has a key with empty, `.` or `..` parts")
    if not key and not prefix:
        raise _invalid(f"has no key in bucket `{bucket}`; write its key, or list spec.files")
    if key.endswith("/") and not prefix:
        kind = "; a gguf model is one file" if model_format == "gguf" else ""
        raise _invalid(f"names a prefix{kind}; to fetch several objects, list them in spec.files")
    return ModelSource(kind=SourceKind.S3, address=address, path=key, bucket=bucket)


def _repository(address: str, text: str) -> ModelSource:
    repository, at, revision = text.rstrip("/").partition("@")
    parts = repository.split("/")
    if len(parts) > 2 and all(parts):
        example = f"hf://{parts[0]}/{parts[1]}{at}{revision}/{'/'.join(parts[2:])}"
        raise _invalid(f"`{text}` has more parts than `org/repo`; for one file write `{example}`")
    if len(parts) != 2 or not all(_REPOSITORY_PART.fullmatch(part) for part in parts):
        raise _invalid(f"`{text}` is neither a URL, an absolute path nor a repository `org/repo[@revision]`")
    if at and (not _REVISION.fullmatch(revision) or ".." in revision):
        raise _invalid(f"`{revision}` is not a revision; write a branch, a tag or a commit after `@`")
    return ModelSource(kind=SourceKind.REPOSITORY, address=address, repository=repository, revision=revision)


def _file(address: str, path: str, model_format: str) -> ModelSource:
    if path.lower().startswith("localhost/"):
        path = path[len("localhost") :]
    if not path.startswith("/"):
        raise _invalid("`file://` needs an absolute path: `file:///srv/models/x.gguf`")
    _check_path(path, model_format)
    return ModelSource(kind=SourceKind.FILE, address=address, path=path, directory=_names_directory(path, model_format))


def _names_directory(path: str, model_format: str) -> bool:
    """Return whether a path names a directory, by its text: Herdsman cannot read the node's disk."""
    if path.endswith("/"):
        return True
    return model_format in _FORMATS_OF_DIRECTORIES and not path.lower().endswith(_WEIGHTS)


def _claim(address: str, rest: str, model_format: str) -> ModelSource:
    claim, _, path = rest.partition("/")
    if not all(is_dns_label(part) for part in claim.split(".")) or len(claim) > 253:
        raise _invalid(f"`{claim}` is not the name of a PersistentVolumeClaim")
    path = path.lstrip("/")
    if not path:
        raise _invalid(f"has no file path; write `pvc://{claim}/path/to/model.gguf`")
    _check_path(path, model_format)
    return ModelSource(kind=SourceKind.CLAIM, address=address, path=path, claim=claim)


def _check_path(path: str, model_format: str) -> None:
    if ".." in path.split("/"):
        raise _invalid("must not contain `..`")
    if model_format == "gguf" and path.endswith("/"):
        raise _invalid("names a directory; a gguf model is one file")
