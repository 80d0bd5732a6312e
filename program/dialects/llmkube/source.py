"""Parse `Model.spec.source` once, and derive from it what LLMKube derives: the cache key and the cached file's name.

Called by the dialect's parser, by `model_status` and by the Model controller; pure, calls nothing of ours.
"""

from __future__ import annotations

import hashlib
import re
from urllib.parse import SplitResult, unquote, urlsplit

from program.desired.errors import SpecInvalid
from program.desired.keys import is_dns_label
from program.desired.model import ModelSource, SourceKind

FIELD = "spec.source"

_HUB_HOSTS = frozenset({"huggingface.co", "www.huggingface.co", "hf.co"})
_HUB_FILE_ROUTES = frozenset({"resolve", "blob", "raw"})
_REPOSITORY_PART = re.compile(r"[A-Za-z0-9][\w.\-]*", re.ASCII)
_REVISION = re.compile(r"[A-Za-z0-9][\w.\-/]*", re.ASCII)
_SCHEME = re.compile(r"([A-Za-z][A-Za-z0-9+.\-]*)://")
_UNSAFE_IN_NAMES = re.compile(r"[^A-Za-z0-9._-]+", re.ASCII)
_DASHES = re.compile(r"-{2,}")
_LONGEST_STEM = 200
"""A file name may have 255 bytes; `.gguf` and a download's `.partial` still have to fit behind the stem."""


def parse_source(address: str, *, format: str = "gguf") -> ModelSource:  # noqa: A002 - the CRD's own name for it
    """Parse the address of a model's weights; schemes are read case-insensitively.

    `format` is the Model's `spec.format`: a `gguf` is one file, so a path that names a directory is refused for it.
    Raises SpecInvalid with field `spec.source` for anything that Herdsman could not serve.
    """
    if not address:
        raise _invalid("is empty; name a URL, a path, `pvc://claim/path` or `org/repo`")
    if any(character.isspace() or not character.isprintable() for character in address):
        raise _invalid("contains white space or control characters")
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
        return _repository(address, rest)
    raise _invalid(f"scheme `{scheme}` is not served; use https, http, file, pvc or hf")


def cache_key(address: str) -> str:
    """Name the cache directory of a source: the first 16 hex digits of the SHA-256 of the address as written."""
    return hashlib.sha256(address.encode()).hexdigest()[:16]


def file_name(gguf_name: str, model_name: str) -> str:
    """Name the cached file after the GGUF's `general.name`, else the Model, else `model`; always ends in `.gguf`."""
    return f"{_sanitised(gguf_name) or _sanitised(model_name) or 'model'}.gguf"


def needs_cache(source: ModelSource) -> bool:
    """Tell whether pods keep a copy in the model cache; claims are mounted, repositories are the engine's business."""
    return source.kind in (SourceKind.HTTP, SourceKind.FILE)


def _invalid(why: str) -> SpecInvalid:
    return SpecInvalid(field=FIELD, why=why)


def _sanitised(name: str) -> str:
    dashed = _DASHES.sub("-", _UNSAFE_IN_NAMES.sub("-", name))
    return dashed.strip("-._")[:_LONGEST_STEM].rstrip("-._")


def _web(address: str) -> ModelSource:
    try:
        parts = urlsplit(address)
        host, port = parts.hostname, parts.port
    except ValueError as error:
        raise _invalid(f"is not a URL: {error}") from None
    if not host:
        raise _invalid("names no host")
    if port == 0:
        raise _invalid("names port 0")
    if host in _HUB_HOSTS:
        return _hub_page(address, parts)
    return ModelSource(kind=SourceKind.HTTP, address=address, path=unquote(parts.path.rsplit("/", 1)[-1]))


def _hub_page(address: str, parts: SplitResult) -> ModelSource:
    """Tell a single file on Hugging Face from a repository's own pages."""
    segments = [segment for segment in parts.path.split("/") if segment]
    if segments and segments[0] in ("datasets", "spaces"):
        raise _invalid(f"names one of Hugging Face's {segments[0]}, not a model")
    if len(segments) > 4 and segments[2] in _HUB_FILE_ROUTES and not parts.path.endswith("/"):
        url = ""
        if segments[2] == "blob":
            # The page that shows the file, not the file.
            segments[2] = "resolve"
            url = parts._replace(path="/" + "/".join(segments)).geturl()
        return ModelSource(kind=SourceKind.HTTP, address=address, path=unquote(segments[-1]), url=url)
    repository = "/".join(segments[:2])
    if len(segments) in (1, 2):
        return _repository(address, repository)
    if len(segments) == 4 and segments[2] in (*_HUB_FILE_ROUTES, "tree"):
        return _repository(address, f"{repository}@{unquote(segments[3])}")
    raise _invalid("is neither a file nor a repository's page on Hugging Face; use `…/resolve/<revision>/<file>`")


def _repository(address: str, text: str) -> ModelSource:
    repository, at, revision = text.rstrip("/").partition("@")
    parts = repository.split("/")
    if len(parts) > 2 and all(parts):
        file = "/".join(parts[2:])
        example = f"https://huggingface.co/{parts[0]}/{parts[1]}/resolve/{revision or 'main'}/{file}"
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
    return ModelSource(kind=SourceKind.FILE, address=address, path=path)


def _claim(address: str, rest: str, model_format: str) -> ModelSource:
    claim, _, path = rest.partition("/")
    if not all(is_dns_label(part) for part in claim.split(".")) or len(claim) > 253:
        raise _invalid(f"`{claim}` is not the name of a PersistentVolumeClaim")
    path = path.lstrip("/")
    if not path:
        raise _invalid(f"names no file on the claim; write `pvc://{claim}/path/to/model.gguf`")
    _check_path(path, model_format)
    return ModelSource(kind=SourceKind.CLAIM, address=address, path=path, claim=claim)


def _check_path(path: str, model_format: str) -> None:
    if ".." in path.split("/"):
        raise _invalid("must not climb with `..`")
    if model_format == "gguf" and path.endswith("/"):
        raise _invalid("names a directory; a gguf model is one file")
