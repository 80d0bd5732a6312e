"""A provider whose writes wait for a gate, for tests that stop, kill or overlap runs at a known point."""

from __future__ import annotations

import threading
from typing import Any

from components.providers.kubernetes import KubernetesProvider
from kubeapi.client import KubeClient


class GatedProvider(KubernetesProvider):
    """The real provider. While the gate is shut, creates block; `waiting` is released once for each of them."""

    def __init__(self, client: KubeClient) -> None:
        super().__init__(client)
        self.gate = threading.Event()
        self.gate.set()
        self.waiting = threading.Semaphore(0)

    def Create(self, request: Any, context: Any) -> Any:
        if not request.preview and not self.gate.is_set():
            self.waiting.release()
            self.gate.wait(60)
        return super().Create(request, context)
