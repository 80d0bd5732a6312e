"""A client in the cluster: a pod that sends completion requests to a Service and records the status of each
response.
"""

from __future__ import annotations

import contextlib
import json
from collections.abc import Iterator
from dataclasses import dataclass

from kubeapi import kinds
from kubeapi.client import KubeClient
from kubeapi.json_types import Json
from kubeapi.pods import read_log
from tests.support import node as real
from tests.support.loop import eventually
from tools.node.image_set import DOWNLOADER_IMAGE

PAUSE_S = 0.2
_ASK = f"""\
while :; do
    curl -s -o /dev/null -m "$TIMEOUT" -w '%{{http_code}}\\n' -H 'Content-Type: application/json' -d "$BODY" "$URL"
    sleep {PAUSE_S}
done
"""


@dataclass(frozen=True)
class ClientPod:
    """The pod of the client."""

    client: KubeClient
    namespace: str
    name: str

    def answers(self) -> list[int]:
        """The HTTP status of each response so far; 0 for a request without a response."""
        log = b"".join(read_log(self.client, self.namespace, self.name, "client")).decode()
        return [int(line) for line in log.split()]

    def await_answers(self, count: int = 3, *, timeout_s: float = 30.0) -> None:
        """Wait until the next `count` consecutive requests succeed."""
        before = len(self.answers())

        def answered() -> bool:
            new = self.answers()[before:]
            return any(new[at : at + count] == [200] * count for at in range(len(new)))

        eventually(answered, what=f"{count} answers in a row to a pod", timeout_s=timeout_s)


@contextlib.contextmanager
def asking(
    client: KubeClient, namespace: str, url: str, *, name: str = "client", timeout_s: int = 10
) -> Iterator[ClientPod]:
    """Run a pod that sends chat requests to `url` while the block lasts."""
    body = {"messages": [{"role": "user", "content": "Hello"}], "max_tokens": 2}
    variables = {"URL": f"{url}/v1/chat/completions", "BODY": json.dumps(body), "TIMEOUT": str(timeout_s)}
    container = {
        "name": "client",
        "image": DOWNLOADER_IMAGE,
        "imagePullPolicy": "Never",
        "command": ["/bin/sh", "-c", _ASK],
        "env": [{"name": key, "value": value} for key, value in variables.items()],
    }
    pod: Json = {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {"name": name},
        "spec": {"containers": [container], "terminationGracePeriodSeconds": 0, "enableServiceLinks": False},
    }
    client.create(kinds.PODS, namespace, pod)
    try:
        real.pod_ready(client, namespace, name)
        yield ClientPod(client, namespace, name)
    finally:
        client.delete(kinds.PODS, namespace, name)
