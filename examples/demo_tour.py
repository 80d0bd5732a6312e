"""The tour of `make demo`: a preview, an approved change, a repaired deletion, and a killed process that comes back.

Each step runs a command of Herdsman as a person would, shows its output, and waits until the cluster has the result.
"""

from __future__ import annotations

import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, TypeVar

import psutil
from rich.console import Console

from kubeapi import kinds
from kubeapi.client import KubeClient
from kubeapi.errors import Conflict, NotFound
from program.desired.keys import ANNOTATION_MODE

CONTEXT_SIZE = 1024
"""The changed value; the example has 512 tokens."""
WAIT_S = 120.0
T = TypeVar("T")


class TourFailed(Exception):
    """A step had no result in time; the message says which."""


class Tour:
    """The steps, on the demo's service."""

    def __init__(self, client: KubeClient, console: Console, *, kubeconfig: Path, namespace: str, service: str) -> None:
        self._client = client
        self._console = console
        self._kubeconfig = kubeconfig
        self._namespace = namespace
        self._service = service

    def run(self, manifest: str) -> None:
        """Show all steps; `manifest` is the example as it was applied. Raises TourFailed and KubeError."""
        self._preview(manifest)
        self._approve()
        self._repair()
        self._restart()

    # --- steps --------------------------------------------------------------------------------------------------------

    def _preview(self, manifest: str) -> None:
        self._title("A preview", "What would a context of 1,024 tokens change? Nothing is written.")
        changed = manifest.replace("contextSize: 512", f"contextSize: {CONTEXT_SIZE}")
        self._herdsman("preview", "-f", "-", standard_input=changed, codes=(0, 2))

    def _approve(self) -> None:
        self._title("An approved change", "In mode Preview a change waits until somebody approves it.")
        self._patch({"metadata": {"annotations": {ANNOTATION_MODE: "Preview"}}})
        self._patch({"spec": {"contextSize": CONTEXT_SIZE}})
        self._await(lambda: (self._status().get("pendingChange") or {}).get("digest"), "a pending change")
        self._herdsman("approve", self._service, "--yes")
        self._patch({"metadata": {"annotations": {ANNOTATION_MODE: None}}})
        self._await_ready(f"the replica with a context of {CONTEXT_SIZE} tokens")

    def _repair(self) -> None:
        self._title("A repaired deletion", "Somebody deletes the Service of the model. The loop makes it again.")
        name = self._service
        gone = self._client.get(kinds.SERVICES, self._namespace, name)["metadata"]["uid"]
        self._console.print(f"[dim]$ kubectl delete service {name}[/dim]")
        began = time.monotonic()
        self._client.delete(kinds.SERVICES, self._namespace, name, uid=gone)

        def is_made() -> bool:
            try:
                return bool(self._client.get(kinds.SERVICES, self._namespace, name)["metadata"]["uid"] != gone)
            except NotFound:
                return False

        self._await(is_made, "the Service")
        self._done(f"Service `{name}` is there again", began)

    def _restart(self) -> None:
        self._title("A killed process", "Somebody kills the model server. The agent starts it again.")
        killed = self._process()["pid"]
        self._console.print(f"[dim]$ kill -9 {killed}[/dim]")
        began = time.monotonic()
        psutil.Process(int(killed)).kill()
        self._await(lambda: self._process().get("ready") and self._process().get("pid") != killed, "another process")
        self._await_ready("the service")
        self._done(f"process {self._process()['pid']} serves", began)

    # --- parts --------------------------------------------------------------------------------------------------------

    def _title(self, title: str, text: str) -> None:
        self._console.print(f"\n[bold]{title}.[/bold] {text}\n")

    def _done(self, what: str, began: float) -> None:
        self._console.print(f"[green]✓[/green] {what} [dim]({time.monotonic() - began:.1f} s)[/dim]")

    def _herdsman(self, *arguments: str, standard_input: str | None = None, codes: tuple[int, ...] = (0,)) -> None:
        self._console.print(f"[dim]$ herdsman {' '.join(arguments)}[/dim]")
        command = [sys.executable, "-m", "automation.cli", *arguments, "--kubeconfig", str(self._kubeconfig)]
        done = subprocess.run(command, input=standard_input, text=True, timeout=WAIT_S, check=False)
        if done.returncode not in codes:
            raise TourFailed(f"`herdsman {' '.join(arguments)}` ended with {done.returncode}")

    def _patch(self, body: dict[str, Any]) -> None:
        for _ in range(5):
            try:
                self._client.patch(
                    kinds.INFERENCE_SERVICES, self._namespace, self._service, body, field_manager="kubectl"
                )
                return
            except Conflict:
                continue
        raise TourFailed("the service changes all the time")

    def _status(self) -> dict[str, Any]:
        found = self._client.get(kinds.INFERENCE_SERVICES, self._namespace, self._service)
        return dict(found.get("status") or {})

    def _generation(self) -> Any:
        return self._client.get(kinds.INFERENCE_SERVICES, self._namespace, self._service)["metadata"]["generation"]

    def _process(self) -> dict[str, Any]:
        return dict(self._client.get(kinds.HOST_PROCESSES, self._namespace, self._service).get("status") or {})

    def _await_ready(self, what: str) -> None:
        def is_ready() -> bool:
            status = self._status()
            return (
                status.get("phase") == "Ready"
                and status.get("observedGeneration") == self._generation()
                and not status.get("pendingChange")
                and bool(self._process().get("ready"))
            )

        self._await(is_ready, what)

    def _await(self, look: Callable[[], T], what: str) -> T:
        deadline = time.monotonic() + WAIT_S
        with self._console.status(f"Waiting for {what} …"):
            while not (found := look()):
                if time.monotonic() > deadline:
                    raise TourFailed(f"waited {WAIT_S:.0f} s for {what}")
                time.sleep(0.2)
        return found
