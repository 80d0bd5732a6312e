"""The documents of a service that `herdsman deploy` describes by options: a Model and an InferenceService. Pure.

The options are those of LLMKube's `llmkube deploy`. An option that is not given leaves its field out, so that a second
deploy changes only what it names.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from automation.places.place import PlaceError
from kubeapi import kinds
from kubeapi.json_types import Json
from program.desired.keys import ANNOTATION_HOST, ANNOTATION_IDLE_TIMEOUT

_NAME = re.compile(r"[a-z0-9]([-a-z0-9.]{0,51}[a-z0-9])?")
_REPOSITORY = re.compile(r"[A-Za-z0-9][\w.-]*(/[\w.-]+)+")
_VENDORS = {"rocm": "amd", "intel": "intel"}


@dataclass(frozen=True)
class DeployOptions:
    """The options of a deploy; None and empty values were not given."""

    source: str = ""
    quantization: str = ""
    sha256: str = ""
    format: str = ""
    accelerator: str = ""
    gpu: bool = False
    gpu_count: int | None = None
    gpu_layers: int | None = None
    gpu_memory: str = ""
    replicas: int | None = None
    min_replicas: int | None = None
    max_replicas: int | None = None
    cpu: str = ""
    memory: str = ""
    context_size: int | None = None
    parallel: int | None = None
    flash_attention: bool | None = None
    jinja: bool | None = None
    cache_type_k: str = ""
    cache_type_v: str = ""
    extra_args: tuple[str, ...] = ()
    runtime: str = ""
    image: str = ""
    node_port: int | None = None
    env: Mapping[str, str] = field(default_factory=dict)
    mode: str = ""
    host: str = ""
    idle_timeout: str = ""

    @property
    def of_model(self) -> bool:
        """Whether an option of the Model was given."""
        return bool(self.source or self.quantization or self.sha256 or self.format or self._hardware())

    def _hardware(self) -> Json:
        gpu = self.gpu or any(each is not None for each in (self.gpu_count, self.gpu_layers)) or bool(self.gpu_memory)
        accelerator = self.accelerator or ("cuda" if gpu else "")
        if not accelerator:
            return {}
        hardware: Json = {"accelerator": accelerator}
        if gpu:
            given = {"count": self.gpu_count, "layers": self.gpu_layers, "memory": self.gpu_memory or None}
            hardware["gpu"] = {"enabled": True, **_given(given)}
            if vendor := _VENDORS.get(accelerator):
                hardware["gpu"]["vendor"] = vendor
        return hardware

    @property
    def model_spec(self) -> Json:
        """The fields of the Model."""
        return _given(
            {
                "source": self.source,
                "quantization": self.quantization,
                "sha256": self.sha256,
                "format": self.format,
                "hardware": self._hardware(),
            }
        )

    @property
    def service_spec(self) -> Json:
        """The fields of the InferenceService, without its Model."""
        gpus = self.gpu_count or (1 if self.gpu else None)
        return _given(
            {
                "replicas": self.replicas,
                "resources": _given({"cpu": self.cpu, "memory": self.memory, "gpu": gpus}),
                "contextSize": self.context_size,
                "parallelSlots": self.parallel,
                "flashAttention": self.flash_attention,
                "jinja": self.jinja,
                "cacheTypeK": self.cache_type_k,
                "cacheTypeV": self.cache_type_v,
                "extraArgs": list(self.extra_args),
                "autoscaling": _given({"minReplicas": self.min_replicas, "maxReplicas": self.max_replicas}),
                "runtime": self.runtime,
                "image": self.image,
                "endpoint": {"type": "NodePort", "nodePort": self.node_port} if self.node_port else {},
                "env": [{"name": name, "value": value} for name, value in self.env.items()],
                "mode": self.mode,
            }
        )

    @property
    def annotations(self) -> dict[str, str]:
        """The annotations of the InferenceService."""
        return _given({ANNOTATION_HOST: self.host, ANNOTATION_IDLE_TIMEOUT: self.idle_timeout})


def documents_of(
    name: str, options: DeployOptions, *, namespace: str = "", model: Json | None = None, model_name: str = ""
) -> list[Json]:
    """Return Model and InferenceService.

    `model` is the Model as it is in the place, if any; `model_name` its name, if it is not that of the service. Without
    an option of the Model, an existing one is left as it is. Raises PlaceError for an invalid name, and without a
    source where there is no Model yet.
    """
    check_name(name)
    found: list[Json] = []
    if model is None or options.of_model:
        source = options.source or str(((model or {}).get("spec") or {}).get("source", ""))
        if not source:
            raise PlaceError(
                f"`{name}` has no model yet", hint="name one with --source FILE, URL or hf://ORG/REPO/FILE"
            )
        found.append(
            _document(kinds.MODELS.kind, model_name or name, namespace, {**options.model_spec, "source": source})
        )
    service = {"modelRef": model_name or name, **options.service_spec}
    found.append(_document(kinds.INFERENCE_SERVICES.kind, name, namespace, service, options.annotations))
    return found


def check_name(name: str) -> None:
    """Raise PlaceError for text that cannot name a service."""
    if not _NAME.fullmatch(name):
        raise PlaceError(
            f"`{name}` cannot name a service", hint="use up to 53 lower-case letters, digits, dots and dashes"
        )


def source_of(text: str, *, folder: Path | None = None) -> str:
    """Return the `source` of a Model: an address as it is, a file of this machine by its absolute path.

    Raises PlaceError for text that is neither, nor `org/repo` of Hugging Face.
    """
    if "://" in text:
        return text
    path = (folder or Path.cwd()) / Path(text).expanduser()
    if text.startswith(("/", "./", "../", "~")) or path.is_file():
        return str(path.resolve())
    if _REPOSITORY.fullmatch(text) and not text.endswith(".gguf"):
        return text
    raise PlaceError(
        f"--source {text}: there is no such file, and it is no address",
        hint="write a path, an https:// address, or hf://ORG/REPO/FILE",
    )


def _document(kind: str, name: str, namespace: str, spec: Json, annotations: Mapping[str, str] | None = None) -> Json:
    metadata: Json = {"name": name, **({"namespace": namespace} if namespace else {})}
    if annotations:
        metadata["annotations"] = dict(annotations)
    return {"apiVersion": kinds.MODELS.api_version, "kind": kind, "metadata": metadata, "spec": spec}


def _given(values: Mapping[str, Any]) -> dict[str, Any]:
    """Leave out what was not given."""
    return {key: value for key, value in values.items() if value not in (None, "", {}, [])}
