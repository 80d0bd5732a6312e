"""`make pictures`: takes the pictures of the web console in docs/pictures, with Chromium and the running demo.

The demo has one service on this machine. Two more get into its cluster while the pictures are taken: one whose change
waits for an approval, and one that waits for a node. Names and addresses of this machine are replaced in the pages.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

from agent.server.host_facts import own_address
from examples.demo import default_directory
from examples.demo_tour import CONTEXT_SIZE
from examples.picture import DOCUMENTED_ADDRESS
from kubeapi import kinds
from kubeapi.client import KubeClient
from kubeapi.errors import ApiError
from tests.support.browser import Browser, browser, chromium
from tests.support.console_process import console_process
from tools.localcluster import LocalCluster
from tools.toolchain import locate

ROOT = Path(__file__).parents[2]
FOLDER = ROOT / "docs" / "pictures"
EXAMPLE = ROOT / "examples" / "02-pods-on-cpu"
WIDTH, HEIGHT = 1080, 640
_WAIT_S = 120.0
PAGES = {
    "console-services": "/",
    "console-service": "/services/default/first",
    "console-catalog": "/catalog",
}
"""The path of each picture's page."""
_CLEANED = """((pairs) => {
  const walker = document.createTreeWalker(document.body, NodeFilter.SHOW_TEXT);
  while (walker.nextNode())
    for (const [from, to] of pairs) walker.currentNode.data = walker.currentNode.data.replaceAll(from, to);
  return true;
})"""


def main() -> int:
    """Take all pictures; returns the exit code."""
    parser = argparse.ArgumentParser(prog="python -m tests.support.console_pictures", description=__doc__)
    parser.add_argument("--demo", type=Path, default=default_directory(), help="folder of the running demo")
    parser.add_argument("--to", type=Path, default=FOLDER, help="folder of the pictures")
    options = parser.parse_args()
    cluster = LocalCluster(options.demo / "cluster")
    if chromium() is None or not cluster.kubeconfig.is_file():
        print(f"needs Chromium on PATH, and a demo in {options.demo}: start it with `make demo`", file=sys.stderr)
        return 1
    client = KubeClient.from_kubeconfig(str(cluster.kubeconfig))
    environment = {**os.environ, "KUBECONFIG": str(cluster.kubeconfig)}
    kubectl = str(locate("kubectl"))
    try:
        # An interrupted run may have left another context, or none. The pending change would then have other lines.
        _edit(client, {"metadata": {"annotations": {"herdsman.dev/mode": None}}, "spec": {"contextSize": CONTEXT_SIZE}})
        _await(lambda: _serves(client, CONTEXT_SIZE), f"a process with a context of {CONTEXT_SIZE} tokens")
        subprocess.run([kubectl, "apply", "-f", str(EXAMPLE)], env=environment, check=True)
        _edit(client, {"metadata": {"annotations": {"herdsman.dev/mode": "Preview"}}, "spec": {"contextSize": 4096}})
        _await(lambda: _waits(client), "the change to wait for its approval")
        with console_process(cluster.kubeconfig) as link, tempfile.TemporaryDirectory() as scratch:
            asyncio.run(_take(link, Path(scratch), options.to))
    finally:
        subprocess.run([kubectl, "delete", "--ignore-not-found", "-f", str(EXAMPLE)], env=environment, check=True)
        _edit(client, {"metadata": {"annotations": {"herdsman.dev/mode": None}}, "spec": {"contextSize": CONTEXT_SIZE}})
        client.close()
    return 0


async def _take(link: str, scratch: Path, folder: Path) -> None:
    origin = "/".join(link.split("/")[:3])
    hidden = [[own_address(), DOCUMENTED_ADDRESS], [socket.gethostname(), "this-machine"], [str(Path.home()), "~"]]
    async with browser(scratch) as page:
        await page.call("Emulation.setEmulatedMedia", features=[{"name": "prefers-color-scheme", "value": "light"}])
        await _size(page, HEIGHT)
        await page.go(link)
        for name, path in PAGES.items():
            await page.go(f"{origin}{path}")
            await _size(page, 100)
            # No scroll bar, and nothing empty below the content.
            height = await page.run("document.documentElement.style.overflow = 'hidden', document.body.scrollHeight")
            await _size(page, min(HEIGHT, int(height) + 16))
            await page.run(f"{_CLEANED}({json.dumps(hidden)})")
            await page.screenshot(folder / f"{name}.png")
            print(folder / f"{name}.png")


async def _size(page: Browser, height: int) -> None:
    await page.call("Emulation.setDeviceMetricsOverride", width=WIDTH, height=height, deviceScaleFactor=1, mobile=False)


def _edit(client: KubeClient, change: dict[str, object]) -> None:
    client.patch(kinds.INFERENCE_SERVICES, "default", "first", change)


def _serves(client: KubeClient, context: int) -> bool:
    """Return whether the process of `first` is ready with this context, and no change of the service waits."""
    service = client.get(kinds.INFERENCE_SERVICES, "default", "first")
    process = client.get(kinds.HOST_PROCESSES, "default", "first")
    argv, status = process["spec"]["argv"], service.get("status") or {}
    return (
        argv[argv.index("--ctx-size") + 1] == str(context)
        and bool((process.get("status") or {}).get("ready"))
        and status.get("phase") == "Ready"
        and status.get("observedGeneration") == service["metadata"]["generation"]
        and not status.get("pendingChange")
    )


def _waits(client: KubeClient) -> bool:
    try:
        status = client.get(kinds.INFERENCE_SERVICES, "default", "first").get("status") or {}
        chat = client.get(kinds.INFERENCE_SERVICES, "default", "chat").get("status") or {}
    except ApiError:
        return False
    found = {each["type"]: each["status"] for each in status.get("conditions") or ()}
    return bool(chat.get("conditions")) and found.get("ChangePending") == "True"


def _await(look: Callable[[], bool], what: str) -> None:
    deadline = time.monotonic() + _WAIT_S
    while not look():
        if time.monotonic() > deadline:
            raise SystemExit(f"waited {_WAIT_S:.0f} s for {what}")
        time.sleep(0.2)


if __name__ == "__main__":
    raise SystemExit(main())
