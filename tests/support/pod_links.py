"""Cuts and restores the network link of a pod on a real node.

The network plugin of the node enforces no NetworkPolicy, so the link itself is set down.
"""

from __future__ import annotations

import json
import subprocess

from kubeapi.json_types import Json
from tools.node import lifecycle
from tools.node.node import Node


class PodLink:
    """The node's end of the link to one pod."""

    def __init__(self, node: Node, pod: Json) -> None:
        self._node = node
        [route] = json.loads(self._ip("-json", "route", "get", str(pod["status"]["podIP"])))
        self._device = str(route["dev"])
        self._routes: list[str] = []

    def cut(self) -> None:
        """Set the link down: no packet goes in or out, and connections are not closed."""
        self._routes = self._ip("route", "show", "dev", self._device).splitlines()
        self._ip("link", "set", self._device, "down")

    def heal(self) -> None:
        """Set the link up, with the routes that the kernel removed with it."""
        self._ip("link", "set", self._device, "up")
        for route in self._routes:
            self._ip("route", "replace", *route.split(), "dev", self._device)

    def _ip(self, *words: str) -> str:
        inside = ("nsenter", f"--net=/proc/{lifecycle.first_pid(self._node.layout)}/ns/net", "ip")
        return subprocess.run([*inside, *words], capture_output=True, text=True, check=True, timeout=30).stdout
