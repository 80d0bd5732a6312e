"""The controller of LeaderWorkerSets as a separate process on a test's control plane, with its webhooks.

The webhooks set defaults, reject invalid objects, and write into each pod of a group its leader and its index. The API
server reaches them on loopback.
"""

from __future__ import annotations

import base64
import contextlib
import datetime
import os
import subprocess
import time
import urllib.request
from collections.abc import Iterator
from pathlib import Path

import yaml

from automation.certificates.files import serving_files
from kubeapi import kinds
from kubeapi.client import KubeClient
from kubeapi.errors import ApiError, NotFound
from kubeapi.json_types import Json
from kubeapi.kinds import Kind
from tests.support import peer_crds
from tests.support.controlplane import eventually, tool_or_skip
from tests.support.supervising import free_port
from tools.localcluster import LocalCluster

_HOOKS = {
    name: Kind("admissionregistration.k8s.io/v1", name, f"{name.lower()}s", False)
    for name in ("MutatingWebhookConfiguration", "ValidatingWebhookConfiguration")
}
_OF_GROUPS = {"matchExpressions": [{"key": "leaderworkerset.sigs.k8s.io/name", "operator": "Exists"}]}
"""The selectors of the project's own manifest: only pods of groups pass the webhooks."""
_PROBE: Json = {
    "apiVersion": kinds.LEADER_WORKER_SETS.api_version,
    "kind": kinds.LEADER_WORKER_SETS.kind,
    "metadata": {"name": "probe"},
    "spec": {"leaderWorkerTemplate": {"workerTemplate": {"spec": {"containers": [{"name": "a", "image": "a"}]}}}},
}


@contextlib.contextmanager
def running(cluster: LocalCluster, directory: Path) -> Iterator[subprocess.Popen[bytes]]:
    """Serve LeaderWorkerSets on a cluster while the block lasts: CRD, webhooks, controller.

    It needs the whole control plane, whose controllers create the pods of StatefulSets. It skips the test where the
    program or the Go module is not available.
    """
    program = tool_or_skip("lws-controller")
    client = KubeClient.from_kubeconfig(str(cluster.kubeconfig))
    directory.mkdir(parents=True, exist_ok=True)
    log = directory / "lws.log"
    try:
        with peer_crds.installed(client, [kinds.LEADER_WORKER_SETS]):
            webhooks, health = free_port(), free_port()
            authority = _write_certificates(directory / "certificates")
            configuration = _write_configuration(directory, webhooks=webhooks, health=health)
            with log.open("ab") as output:
                process = subprocess.Popen(
                    [str(program), f"--kubeconfig={cluster.kubeconfig}", f"--config={configuration}"],
                    stdout=output,
                    stderr=output,
                    env={**os.environ, "ENABLE_WEBHOOKS": "true"},
                )
            try:
                _await_healthy(process, health, log)
                _install_webhooks(client, webhooks, authority)
                eventually(lambda: _defaults(client), what=f"the webhooks of LeaderWorkerSets, see {log}")
                yield process
            finally:
                _remove_webhooks(client)
                process.terminate()
                try:
                    process.wait(60)
                except subprocess.TimeoutExpired:
                    process.kill()
                    process.wait()
    finally:
        client.close()


def _write_certificates(directory: Path) -> bytes:
    directory.mkdir(exist_ok=True)
    files = serving_files(["localhost"], ["127.0.0.1"], now=datetime.datetime.now(datetime.UTC))
    for name, text in files.items():
        (directory / name).write_bytes(text)
    return files["ca.crt"]


def _write_configuration(directory: Path, *, webhooks: int, health: int) -> Path:
    configuration = {
        "apiVersion": "config.lws.x-k8s.io/v1alpha1",
        "kind": "Configuration",
        "leaderElection": {"leaderElect": False},
        "internalCertManagement": {"enable": False},
        "webhook": {"host": "127.0.0.1", "port": webhooks, "certDir": str(directory / "certificates")},
        "metrics": {"bindAddress": "0"},
        "health": {"healthProbeBindAddress": f"127.0.0.1:{health}"},
    }
    path = directory / "lws.yaml"
    path.write_text(yaml.safe_dump(configuration))
    return path


def _await_healthy(process: subprocess.Popen[bytes], port: int, log: Path) -> None:
    until = time.monotonic() + 30
    while time.monotonic() < until and process.poll() is None:
        try:
            with urllib.request.urlopen(f"http://127.0.0.1:{port}/readyz", timeout=2):
                return
        except OSError:
            time.sleep(0.1)
    raise AssertionError(f"the controller of LeaderWorkerSets did not start:\n{log.read_text()[-3000:]}")


def _install_webhooks(client: KubeClient, port: int, authority: bytes) -> None:
    """Register the webhooks of the project's manifest with an address on loopback."""
    text = (peer_crds.folder(peer_crds.LWS_MODULE) / "config" / "webhook" / "manifests.yaml").read_text()
    for document in yaml.safe_load_all(text):
        if not document:
            continue
        document["metadata"]["name"] = _name(document["kind"])
        for hook in document["webhooks"]:
            path = hook["clientConfig"]["service"]["path"]
            hook["clientConfig"] = {
                "url": f"https://127.0.0.1:{port}{path}",
                "caBundle": base64.b64encode(authority).decode(),
            }
            if any("pods" in rule["resources"] for rule in hook["rules"]):
                hook["objectSelector"] = _OF_GROUPS
        client.apply(_HOOKS[document["kind"]], None, document, field_manager="tests", force=True)


def _remove_webhooks(client: KubeClient) -> None:
    for name, kind in _HOOKS.items():
        with contextlib.suppress(NotFound):
            client.delete(kind, None, _name(name))


def _name(kind: str) -> str:
    return f"lws-{kind.lower()}"


def _defaults(client: KubeClient) -> bool:
    """Return whether the webhooks work: they set defaults that the CRD does not set."""
    try:
        made = client.create(kinds.LEADER_WORKER_SETS, "default", _PROBE, dry_run=True)
    except ApiError:
        return False
    return "networkConfig" in made["spec"]
