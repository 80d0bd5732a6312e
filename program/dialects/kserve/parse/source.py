"""Parses addresses of models and adapters: `hf://`, `s3://`, `pvc://`, `oci://`, `oci+native://`. Pure.

An address that cannot be served is refused here. KServe accepts every address and reports the failure in the status.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal

from program.desired.errors import SpecInvalid
from program.desired.model import ModelSource, SourceKind
from program.desired.web_address import AddressInvalid, check_characters, read_authority, shown
from program.dialects.annotation_values import is_name
from program.dialects.kserve.naming import LOCAL_MODEL
from program.dialects.kserve.settings import StorageSettings

Scheme = Literal["hf", "s3", "pvc", "oci", "oci+native"]
SCHEMES: tuple[Scheme, ...] = ("hf", "s3", "pvc", "oci", "oci+native")
LOCAL_MODEL_SOURCE = f"{LOCAL_MODEL}-sourceuri"
LOCAL_MODEL_CLAIM = f"{LOCAL_MODEL}-pvc-name"
"""Annotations of a service whose model is in a cache on the nodes: the source, and the claim with the cache."""

_ADDRESS = re.compile(r"(?P<scheme>[a-z0-9+]+)://(?P<rest>[^\s\x00-\x1f\x7f]+)", re.ASCII)
_REPOSITORY = re.compile(
    r"(?P<repository>[A-Za-z0-9][\w.-]*/[A-Za-z0-9][\w.-]*)(?::(?P<revision>[\w.\-/]+))?", re.ASCII
)
_LONGEST = 2048


@dataclass(frozen=True)
class Address:
    """The address of a model, parsed once."""

    written: str
    scheme: Scheme
    rest: str
    """The text after `://`."""

    @property
    def is_fetched(self) -> bool:
        """Whether an init container fetches the files into the pod."""
        return self.scheme in ("hf", "s3")

    @property
    def claim(self) -> str:
        """Name of the claim of a `pvc://` address."""
        return self.rest.partition("/")[0]

    @property
    def path(self) -> str:
        """Path on that claim; empty for its root."""
        return self.rest.partition("/")[2].strip("/")


def read_address(written: str, *, field: str) -> Address:
    """Read an address. Raises SpecInvalid at `field` for an address that Herdsman's pods cannot fetch from or mount."""
    match = _ADDRESS.fullmatch(written)
    if match is None or len(written) > _LONGEST:
        raise SpecInvalid(
            field=field, why=f"`{written[:64]}` is not the address of a model; write for example `hf://org/repo`"
        )
    for scheme in SCHEMES:
        if scheme == match["scheme"]:
            address = Address(written=written, scheme=scheme, rest=match["rest"])
            _check(address, field)
            return address
    raise SpecInvalid(
        field=field,
        why=f"`{match['scheme']}` is not a supported scheme; use {', '.join(SCHEMES)}",
    )


def model_address(written: str, annotations: Mapping[str, str], storage: StorageSettings, *, field: str) -> Address:
    """Return the address of the model, or of its cache on the nodes, with the way of mounting images set."""
    address = read_address(_cached(written, annotations), field=field)
    if address.scheme != "oci":
        return address
    if storage.oci_model_mode == "native":
        return Address(written=address.written, scheme="oci+native", rest=address.rest)
    if not storage.modelcar and storage.oci_model_mode != "modelcar":
        raise SpecInvalid(
            field=field,
            why="is an image, and this cluster's settings turn the sidecar that mounts images off "
            "(`enableModelcar`); write `oci+native://`, or turn the sidecar on",
        )
    return address


def source_of(address: Address) -> ModelSource:
    """Return the model's source in the format of all dialects."""
    if address.scheme == "hf":
        match = _REPOSITORY.fullmatch(address.rest)
        assert match is not None  # read_address has checked it
        return ModelSource(
            kind=SourceKind.REPOSITORY,
            address=address.written,
            repository=match["repository"],
            revision=match["revision"] or "",
        )
    if address.scheme == "s3":
        bucket, _, key = address.rest.partition("/")
        return ModelSource(kind=SourceKind.S3, address=address.written, bucket=bucket, path=key)
    if address.scheme == "pvc":
        return ModelSource(kind=SourceKind.CLAIM, address=address.written, claim=address.claim, path=address.path)
    return ModelSource(kind=SourceKind.OTHER, address=address.written)


def _check(address: Address, field: str) -> None:
    try:
        check_characters(address.rest)
        if address.scheme == "s3" and not address.rest.startswith("/"):
            # The loader takes the text before the first slash as a host, like any parser of URLs.
            read_authority(address.rest.partition("/")[0])
    except AddressInvalid as error:
        raise SpecInvalid(field=field, why=f"`{shown(address.written)[:64]}` {error}") from None
    if address.scheme == "hf" and _REPOSITORY.fullmatch(address.rest) is None:
        raise SpecInvalid(
            field=field, why=f"`{address.written[:64]}` is not `hf://org/repo` or `hf://org/repo:revision`"
        )
    if address.scheme == "pvc" and not is_name(address.claim):
        why = f"`{address.claim[:64]}` is not the name of a claim; write `pvc://claim` or `pvc://claim/path`"
        raise SpecInvalid(field=field, why=why)
    if address.scheme == "s3" and address.rest.startswith("/"):
        raise SpecInvalid(field=field, why=f"`{address.written[:64]}` has no bucket; write `s3://bucket/path`")
    if address.scheme in ("pvc", "s3") and any(part == ".." for part in address.rest.split("/")):
        raise SpecInvalid(field=field, why=f"`{address.written[:64]}` leaves its directory by `..`")


def _cached(written: str, annotations: Mapping[str, str]) -> str:
    source, claim = annotations.get(LOCAL_MODEL_SOURCE, ""), annotations.get(LOCAL_MODEL_CLAIM, "")
    if not source or not claim or not (written == source or written.startswith(f"{source.rstrip('/')}/")):
        return written
    folder = hashlib.sha256(source.encode()).hexdigest()[:16]
    return f"pvc://{claim}/models/{folder}{written[len(source.rstrip('/')) :]}"
