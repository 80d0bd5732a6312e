"""LoRA adapters of an LLMInferenceService: names, paths in the pod, and the arguments that load them. Pure."""

from __future__ import annotations

import hashlib
import json
import re
from dataclasses import dataclass

from kubeapi.json_types import Json
from program.desired.errors import SpecInvalid
from program.dialects.kserve.naming import published_model
from program.dialects.kserve.parse.pod_draft import Container
from program.dialects.kserve.parse.source import Address, read_address
from program.dialects.kserve.parse.subject import value_at

FOLDER = "/mnt/lora"
_FIELD = "spec.model.lora.adapters"
_UNSAFE = re.compile(r"[^A-Za-z0-9._-]+", re.ASCII)
_NOT_IN_LABELS = re.compile(r"[^a-z0-9-]+", re.ASCII)
_LONGEST_FOLDER = 100


@dataclass(frozen=True)
class Adapter:
    """One LoRA adapter."""

    name: str
    """The name that clients ask for."""
    address: Address
    field: str
    """Its path in the custom resource."""

    @property
    def folder(self) -> str:
        """Name of its folder: the adapter's name, with a hash if that is not a valid folder name."""
        safe = _UNSAFE.sub("-", self.name)[:_LONGEST_FOLDER].strip(".-")
        return safe if safe == self.name else f"{safe or 'adapter'}-{_hash(self.name)}"

    @property
    def path(self) -> str:
        """Its path in pods."""
        return f"{FOLDER}/{self.folder}"

    @property
    def volume(self) -> str:
        """Name of its volume, if it is on a claim."""
        label = _NOT_IN_LABELS.sub("-", self.name.lower()).strip("-")
        return f"lora-pvc-{label if label == self.name and len(label) <= 40 else f'{label[:32]}-{_hash(self.name)}'}"


def adapters(spec: Json) -> tuple[Adapter, ...]:
    """List the adapters by name. Raises SpecInvalid for an invalid name or address."""
    listed = value_at(spec, "model", "lora", "adapters") or ()
    found: dict[str, Adapter] = {}
    for index, written in enumerate(listed):
        field = f"{_FIELD}[{index}]"
        name = str(written.get("name") or "")
        if not name or ".." in name.split("/") or name.startswith("/") or name in (".", ".."):
            raise SpecInvalid(field=f"{field}.name", why=f"`{name[:64]}` is not a name for an adapter")
        if name in found:
            raise SpecInvalid(field=f"{field}.name", why=f"`{name[:64]}` is the name of two adapters")
        address = read_address(str(written.get("uri") or ""), field=f"{field}.uri")
        if address.scheme not in ("hf", "s3", "pvc"):
            raise SpecInvalid(field=f"{field}.uri", why="adapters come from hf, s3 or pvc, not from images")
        found[name] = Adapter(name=name, address=address, field=field)
    return tuple(found[name] for name in sorted(found))


def load_adapters(main: Container, spec: Json, loaded: tuple[Adapter, ...], *, namespace: str) -> None:
    """Add vLLM's arguments for the adapters, each by its plain and by its published name.

    A list of the user replaces them.
    """
    if not loaded or main.has_flag("--lora-modules"):
        return
    lora = value_at(spec, "model", "lora") or {}
    limits = (("maxRank", "--max-lora-rank"), ("maxAdapters", "--max-loras"), ("maxCpuAdapters", "--max-cpu-loras"))
    args = ["--enable-lora", *(f"{flag}={lora[name]}" for name, flag in limits if lora.get(name) is not None)]
    args.append("--lora-modules")
    for adapter in loaded:
        args.extend(
            json.dumps({"name": name, "path": adapter.path}, separators=(",", ":"))
            for name in (adapter.name, published_model(namespace, adapter.name))
        )
    main.add_args(*args, first=True)


def _hash(text: str) -> str:
    return hashlib.sha256(text.encode()).hexdigest()[:8]
