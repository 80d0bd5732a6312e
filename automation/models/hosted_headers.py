"""The headers of models that no Model describes: those of KServe's and llmaz' services on hosts.

`reconcile.desire` calls it while the context of a replica is not chosen. The header is read by the probe of the Models'
sources, so limits, policies and shares of namespaces are the same. Of a plan, only the context depends on the header.
"""

from __future__ import annotations

from collections.abc import Callable

from automation.models.model_probe import ModelProbe
from program.desired.keys import ServiceKey
from program.desired.model import DesiredModel, ModelFormat
from program.desired.service import DesiredService
from program.dialects.llmkube.parse.source import file_set
from program.dialects.registry import LLMKUBE


class HostedHeaders:
    """Adds the header of its model to a service. Never blocks. Thread-safe."""

    def __init__(self, probe: ModelProbe, requeue: Callable[[ServiceKey, float], None]) -> None:
        """`requeue(key, delay_s)` enqueues a service."""
        self._probe = probe
        self._requeue = requeue

    def told(self, desired: DesiredService) -> DesiredService:
        """Return the service with the headers that are known now, and enqueue it when another header is read.

        No header is read for an InferenceService, because the status of its Model has it. The loop cannot read the
        files of a host.
        """
        if desired.key.dialect == LLMKUBE:
            return desired
        draft = self._told(desired.key, desired.draft) if desired.draft is not None else None
        return desired.model_copy(update={"model": self._told(desired.key, desired.model), "draft": draft})

    def _told(self, key: ServiceKey, model: DesiredModel) -> DesiredModel:
        if model.gguf is not None or not model.cache_key or model.format is not ModelFormat.GGUF:
            return model
        files = tuple(file_set(model.source, model.files, model.mmproj))
        facts = self._probe.latest(
            model.source,
            sha256=model.sha256,
            model_format=str(model.format),
            who=f"{key.namespace}/{key.dialect}:{key.name}",
            changed=lambda: self._requeue(key, 0.0),
            files=files,
        )
        if facts is None or facts.gguf is None:
            due_s = self._probe.due_in_s(model.source, sha256=model.sha256, model_format=str(model.format), files=files)
            self._requeue(key, due_s)
            return model
        return model.model_copy(update={"gguf": facts.gguf, "size_bytes": facts.size_bytes})
