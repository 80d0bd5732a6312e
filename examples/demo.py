"""`make demo` and `make demo-down`: from an empty machine to an answered chat completion.

Starts the local cluster, the loop with its gateway and an agent unless they run. Chooses a model (`demo_model`),
applies `01-first-service` with it, waits until the service is ready, and sends a request to the gateway. With `--tour`,
as `make demo` runs it, `demo_tour` then changes, damages and repairs the service. Everything keeps running.
"""

from __future__ import annotations

import argparse
import json
import os
import signal
import socket
import sys
import time
import urllib.error
import urllib.request
from collections.abc import Callable
from pathlib import Path
from typing import Any

import yaml
from rich.console import Console
from rich.panel import Panel
from rich.text import Text

from agent.server.host_facts import own_address
from automation.catalog.entries import CatalogError
from automation.catalog.loading import load as load_catalog
from automation.catalog.rooms import rooms_of_this_machine
from components.priority_classes import priority_classes
from examples.demo_model import TINY, DemoModel, demo_model
from examples.demo_tour import Tour, TourFailed
from kubeapi import kinds
from kubeapi.client import KubeClient
from kubeapi.errors import ApiError, KubeError, NotFound
from program.desired.keys import ANNOTATION_APPROVED, ANNOTATION_MODE
from program.dialects.crds.definitions import crd_documents
from tools.localcluster import LocalCluster
from tools.localcluster.layout import State
from tools.localcluster.processes import end, find, spawn
from tools.tiny_model import write_tiny_model
from tools.toolchain import ToolMissing

HOST = "this-machine"
NAMESPACE = "default"
SERVICE = "first"
QUESTION = "Tell me a story about a shepherd."
EXAMPLE = Path(__file__).parent / "01-first-service" / "service.yaml"
READY_TIMEOUT_S = 120.0
DOWNLOAD_TIMEOUT_S = 3600.0
"""For a model that is downloaded first."""
GATEWAY_PORT = 8080
"""The port of the gateway, unless another program uses it."""

console = Console(highlight=False, soft_wrap=True)


class DemoFailed(Exception):
    """The demo cannot continue; the message says where to look."""


class Demo:
    """The demo's processes and files, all in one directory."""

    def __init__(self, directory: Path) -> None:
        self.directory = directory
        self.cluster = LocalCluster(directory / "cluster")
        self.state_file = directory / "processes.json"
        self.model = directory / "models" / "tiny.gguf"
        self.served = DemoModel(TINY, "")
        self.gateway_file = directory / "gateway"
        """Has the address of the gateway of the loop that runs."""

    def up(self, *, tour: bool = False) -> None:
        """Start what does not run, apply the example, wait for it, send it a request, and show the tour."""
        (self.directory / "logs").mkdir(parents=True, exist_ok=True)
        # The gateway's record of usage belongs to the demo, too.
        if mirror := os.environ.get("HERDSMAN_HUB_URL"):
            # The name that agents read.
            os.environ.setdefault("HF_ENDPOINT", mirror)
        os.environ.setdefault("HERDSMAN_GATEWAY_STORE", f"sqlite://{self.directory / 'gateway.db'}")
        self._step("Local cluster", self._start_cluster)
        client = KubeClient.from_kubeconfig(str(self.cluster.kubeconfig))
        self._step("CRDs and priority classes", lambda: install(client))
        self._step("The model", self._choose_model)
        self._step("The loop", lambda: self._start("loop", self._loop_arguments()))
        self._step("An agent on this machine", lambda: self._start("agent", self._agent_arguments()))
        self._step("The example service", lambda: self._apply(client))
        self._await_ready(client)
        self._ask(client)
        if tour:
            shown = Tour(client, console, kubeconfig=self.cluster.kubeconfig, namespace=NAMESPACE, service=SERVICE)
            shown.run(self._manifest())
        self._look_around()
        client.close()

    def down(self) -> None:
        """Stop the processes that `up` started, and no others. The data stays for the next `up`."""
        state = State.read(self.state_file)
        for name in ("loop", "agent"):
            record = state.processes.pop(name, None)
            if record is not None:
                end([record], self.directory, grace_s=40.0)
        if self.state_file.is_file():
            state.write(self.state_file)
        self.cluster.down()
        console.print("Stopped the loop, the agent with its processes, and the local cluster.")

    def _step(self, what: str, action: Callable[[], str]) -> None:
        began = time.monotonic()
        with console.status(f"{what} …"):
            outcome = action()
        console.print(f"[green]✓[/green] {what}: {outcome} [dim]({time.monotonic() - began:.1f} s)[/dim]")

    def _start_cluster(self) -> str:
        started = self.cluster.up()
        return "started" if started else "runs already"

    def _choose_model(self) -> str:
        """Choose the model and make it if it is the tiny one. Returns which it is, and why."""
        self.served = demo_model(
            load_catalog(), os.environ, rooms=rooms_of_this_machine(), folder=self.directory / "store"
        )
        if not self.served.is_tiny:
            return f"{self.served.id}, {self.served.bytes / 1e6:,.0f} MB: {self.served.why}"
        return f"a tiny one with random weights, {self._make_model()}: {self.served.why}"

    def _make_model(self) -> str:
        if self.model.is_file():
            return f"{self.model}"
        self.model.parent.mkdir(parents=True, exist_ok=True)
        write_tiny_model(self.model)
        return f"made as {self.model} ({self.model.stat().st_size // 1024} KB)"

    def _loop_arguments(self) -> list[str]:
        return [
            "run",
            f"--kubeconfig={self.cluster.kubeconfig}",
            f"--state=file://{self.directory}/state",
            f"--allowed-host-path-roots={self.model.parent}",
            "--health-port=0",
            "--gateway",
            f"--gateway-listen={self._gateway_address()}",
        ]

    def _gateway_address(self) -> str:
        """Return the address of the running gateway, or a free one for the next gateway."""
        if not self._runs("loop"):
            self.gateway_file.write_text(f"127.0.0.1:{_free_port(GATEWAY_PORT)}")
        return self.gateway_file.read_text()

    def _runs(self, name: str) -> bool:
        return find(State.read(self.state_file).processes.get(name), self.directory) is not None

    def _agent_arguments(self) -> list[str]:
        return [
            "agent",
            "run",
            f"--host={HOST}",
            f"--kubeconfig={self.cluster.kubeconfig}",
            f"--store={self.directory}/store",
            f"--allowed-host-path-roots={self.model.parent}",
            # EndpointSlices need an address of this machine. The default, loopback, is not reachable from the cluster.
            f"--listen={own_address()}",
        ]

    def _start(self, name: str, arguments: list[str]) -> str:
        if self._runs(name):
            return "runs already"
        state = State.read(self.state_file)
        log = self.directory / "logs" / f"{name}.log"
        record = spawn(Path(sys.executable), ["-m", "automation.cli", *arguments], log=log)
        state.processes[name] = record
        state.write(self.state_file)
        time.sleep(1.0)
        if find(record, self.directory) is None:
            raise DemoFailed(f"the {name} ended at once; read its log: {log}")
        return f"started as process {record.pid}, log {log}"

    def _apply(self, client: KubeClient) -> str:
        for document in yaml.safe_load_all(self._manifest()):
            kind = client.mapping(document["apiVersion"], document["kind"])
            client.apply(kind, NAMESPACE, document, field_manager="kubectl", force=True)
        # An interrupted tour leaves its mode behind, and its approval would count for the same change again.
        left = {"metadata": {"annotations": {ANNOTATION_MODE: None, ANNOTATION_APPROVED: None}}}
        client.patch(kinds.INFERENCE_SERVICES, NAMESPACE, SERVICE, left, field_manager="kubectl")
        return f"applied {EXAMPLE.relative_to(Path(__file__).parent.parent)}"

    def _manifest(self) -> str:
        return self.served.manifest(EXAMPLE.read_text(), self.model)

    def _await_ready(self, client: KubeClient) -> None:
        began = time.monotonic()
        timeout_s = READY_TIMEOUT_S if self.served.is_tiny else DOWNLOAD_TIMEOUT_S
        shown = ""
        with console.status("Waiting for the service …") as status:
            while time.monotonic() - began < timeout_s:
                service = client.get(kinds.INFERENCE_SERVICES, NAMESPACE, SERVICE)
                report = self._process(client)
                phase = str((service.get("status") or {}).get("phase") or "Unknown")
                # The phase may be that of an earlier demo, until the loop's first pass.
                seen = (service.get("status") or {}).get("observedGeneration") == service["metadata"]["generation"]
                if phase == "Ready" and seen and report.get("ready"):
                    console.print(f"[green]✓[/green] Ready [dim]({time.monotonic() - began:.1f} s)[/dim]")
                    return
                conditions = {c["type"]: c for c in (service.get("status") or {}).get("conditions") or ()}
                why = str((conditions.get("Ready") or {}).get("message", ""))
                line = f"{phase}: {report.get('phase') or why}{_arrived(report)}"
                if line != shown:
                    status.update(line)
                    shown = line
                time.sleep(0.2)
        raise DemoFailed(f"not ready within {timeout_s:.0f} s ({shown}); logs are in {self.directory / 'logs'}")

    def _process(self, client: KubeClient) -> dict[str, Any]:
        try:
            found = client.get(kinds.HOST_PROCESSES, NAMESPACE, SERVICE)
        except NotFound:
            return {}
        return found.get("status") or {}

    def _ask(self, client: KubeClient) -> None:
        url = f"http://{self._gateway_address()}/v1"
        self._await_listed(url)
        body: dict[str, Any] = {
            "model": SERVICE,
            "messages": [{"role": "user", "content": QUESTION}],
            "max_tokens": 24 if self.served.is_tiny else 160,
        }
        if not self.served.is_tiny:
            # A model that thinks first would use up the tokens of a short answer.
            body["chat_template_kwargs"] = {"enable_thinking": False}
        asked = json.dumps(body)
        request = urllib.request.Request(
            f"{url}/chat/completions", data=asked.encode(), headers={"Content-Type": "application/json"}
        )
        completion = _answer(request)
        console.print(f"\nThe gateway has all models at one address:\n\n  curl {url}/chat/completions -d '{asked}'\n")
        message = completion["choices"][0]["message"]
        text = message.get("content") or message.get("reasoning_content") or ""
        console.print(f"\nPOST {url}\n> {QUESTION}")
        if self.served.is_tiny:
            # The text is noise, but llama-server computed every token.
            text = "".join(c if c.isprintable() else "·" for c in text)
            title = "answer of a model with random weights"
        else:
            title = f"answer of {self.served.id}"
        console.print(Panel(Text(text or "(no text)"), title=title, expand=False))
        usage = completion.get("usage") or {}
        console.print(f"[dim]{usage.get('prompt_tokens')} tokens in, {usage.get('completion_tokens')} out[/dim]\n")
        service = client.get(kinds.INFERENCE_SERVICES, NAMESPACE, SERVICE)
        console.print(f"In the cluster: {service['status'].get('endpoint')}")

    def _await_listed(self, url: str) -> None:
        """Wait until the gateway knows the model."""
        deadline = time.monotonic() + READY_TIMEOUT_S
        while time.monotonic() < deadline:
            with urllib.request.urlopen(f"{url}/models", timeout=10) as answer:
                if SERVICE in {each["id"] for each in json.load(answer)["data"]}:
                    return
            time.sleep(0.1)
        raise DemoFailed(f"the gateway does not list `{SERVICE}`; read the log: {self.directory / 'logs' / 'loop.log'}")

    def _look_around(self) -> None:
        console.print(
            "\nEverything is still running. To look around:\n\n"
            f'  eval "$(.venv/bin/herdsman cluster env --dir {self.cluster.layout.directory})"\n'
            "  .venv/bin/herdsman console  # prints a link: services, hosts, models and a chat in the browser\n"
            f"  .venv/bin/herdsman chat {SERVICE}\n"
            "  .venv/bin/herdsman get\n"
            "  .venv/bin/herdsman top\n"
            "  .venv/bin/herdsman history first\n"
            "  .venv/bin/herdsman host list\n"
            "  kubectl get inferenceservices.inference.llmkube.dev,mdl,hostprocesses,services,endpointslices\n"
            "  kubectl describe inferenceservices.inference.llmkube.dev first\n"
            "  kubectl edit inferenceservices.inference.llmkube.dev first  # a new contextSize replaces the process\n"
            f"  tail -f {self.directory}/logs/loop.log {self.directory}/logs/agent.log\n\n"
            "To stop it all:\n\n  make demo-down\n"
        )


def _arrived(report: dict[str, Any]) -> str:
    """Return how much of the model has arrived; empty if nothing is downloaded."""
    done, total = report.get("downloadedBytes"), report.get("totalBytes")
    if not done or not total or done >= total:
        return ""
    return f", {done / 1e6:,.0f} of {total / 1e6:,.0f} MB"


def _answer(request: urllib.request.Request) -> Any:
    """Send a request, and again while the gateway asks for that: it may not have seen the replica yet."""
    deadline = time.monotonic() + READY_TIMEOUT_S
    while True:
        try:
            with urllib.request.urlopen(request, timeout=60) as answer:
                return json.load(answer)
        except urllib.error.HTTPError as error:
            again_s = error.headers.get("Retry-After")
            if again_s is None or time.monotonic() > deadline:
                raise
            time.sleep(float(again_s))


def _free_port(wanted: int) -> int:
    """Return `wanted`, or a port that the system chooses when another program uses it."""
    for port in (wanted, 0):
        try:
            with socket.create_server(("127.0.0.1", port)) as found:
                return int(found.getsockname()[1])
        except OSError:
            continue
    raise DemoFailed("no port of 127.0.0.1 is free")


def install(client: KubeClient) -> str:
    """Apply the PriorityClasses and the CRDs."""
    for document in priority_classes():
        client.apply(kinds.PRIORITY_CLASSES, None, document, field_manager="kubectl", force=True)
    return install_crds(client)


def install_crds(client: KubeClient) -> str:
    """Apply the CRDs and wait until the API serves them."""
    documents = crd_documents()
    for document in documents:
        client.apply(kinds.CRDS, None, document, field_manager="kubectl", force=True)
    deadline = time.monotonic() + 20
    for kind in (kinds.MODELS, kinds.INFERENCE_SERVICES, kinds.HOST_PROCESSES):
        while True:
            try:
                client.list(kind, limit=1)
                break
            except ApiError:
                if time.monotonic() > deadline:
                    raise
                time.sleep(0.05)
    return f"{len(documents)} installed"


def default_directory() -> Path:
    """Return the folder of the demo's cluster, model, state and logs."""
    base = os.environ.get("XDG_STATE_HOME")
    return (Path(base).expanduser() if base else Path.home() / ".local" / "state") / "herdsman" / "demo"


def main(arguments: list[str] | None = None) -> int:
    """Run `up` or `down`; returns 0, or 1 after an error message."""
    parser = argparse.ArgumentParser(prog="python -m examples.demo", description=__doc__)
    parser.add_argument("action", choices=("up", "down"))
    parser.add_argument("--tour", action="store_true", help="change, damage and repair the service after the answer")
    parser.add_argument("--dir", type=Path, default=default_directory(), help="directory of the demo")
    options = parser.parse_args(arguments)
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    demo = Demo(options.dir.expanduser().resolve())
    try:
        demo.up(tour=options.tour) if options.action == "up" else demo.down()
    except (DemoFailed, TourFailed, CatalogError, KubeError, ToolMissing, OSError, urllib.error.URLError) as error:
        # As text: brackets in an error are no markup.
        console.print(Text.assemble(("Error:", "bold red"), f" {error}"))
        if isinstance(error, CatalogError) and error.hint:
            console.print(Text(f"  {error.hint}"))
        return 1
    except KeyboardInterrupt:
        return 130
    return 0


if __name__ == "__main__":
    sys.exit(main())
