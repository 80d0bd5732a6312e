"""Commands of the how-to guides, word by word, on a real cluster with a real loop; their outputs are as quoted."""

from __future__ import annotations

import json
import os
import pty
import re
import subprocess
import sys
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

import pytest

from kubeapi import kinds
from kubeapi.client import KubeClient
from tests.support.certificates import own_certificate
from tests.support.controlplane import tool_or_skip
from tests.support.documents import difference, steps
from tests.support.loop import (
    LoopProcess,
    arguments,
    deployed,
    edit,
    eventually,
    find,
    grant_loop_rights,
    loop_process,
    settled,
    status,
)
from tests.support.shown_commands import GUIDES
from tools.localcluster import LocalCluster

pytestmark = pytest.mark.soak

ROOT = Path(__file__).parents[2]
NAMESPACE = "prod"
CHAT = "inferenceservices.inference.llmkube.dev chat -n prod"
SERVICE = """\
apiVersion: inference.llmkube.dev/v1alpha1
kind: Model
metadata: {name: base, namespace: prod}
spec: {source: "https://example.invalid/base.gguf"}
---
apiVersion: inference.llmkube.dev/v1alpha1
kind: InferenceService
metadata: {name: chat, namespace: prod}
spec: {modelRef: base, contextSize: CONTEXT, skipModelInit: true, replicas: 2}
"""


@dataclass(frozen=True)
class Shell:
    """Runs commands in bash, with `herdsman` of this environment on PATH."""

    folder: Path
    environment: Mapping[str, str]

    def run(self, command: str, *, answer: str = "", codes: tuple[int, ...] = (0,)) -> str:
        """Run a command and return what it prints, with the answer that is typed on its terminal.

        Fails if the exit code is not one of `codes`.
        """
        master, terminal = pty.openpty()
        try:
            if answer:
                os.write(master, f"{answer}\n".encode())
            done = subprocess.run(
                ["bash", "-c", command],
                env={**os.environ, "COLUMNS": "240", **self.environment},
                cwd=self.folder,
                stdin=terminal if answer else subprocess.DEVNULL,
                stdout=subprocess.PIPE,
                stderr=subprocess.STDOUT,
                text=True,
                timeout=240,
                check=False,
            )
        finally:
            os.close(master)
            os.close(terminal)
        assert done.returncode in codes, f"{command} ended with {done.returncode}:\n{done.stdout}"
        return done.stdout.replace("[y/N]: ", f"[y/N]: {answer}\n") if answer else done.stdout


@pytest.fixture(scope="module")
def shell(own_cluster: LocalCluster, pulumi_cli: Path, tmp_path_factory: pytest.TempPathFactory) -> Shell:
    kubectl = tool_or_skip("kubectl")
    path = (Path(sys.executable).parent, kubectl.parent, pulumi_cli.parent, os.environ["PATH"])
    environment = {"KUBECONFIG": str(own_cluster.kubeconfig), "PATH": os.pathsep.join(map(str, path))}
    return Shell(tmp_path_factory.mktemp("guides"), environment)


@pytest.fixture(scope="module")
def loop(
    shell: Shell,
    own_cluster: LocalCluster,
    own_client: KubeClient,
    pulumi_cli: Path,
    tmp_path_factory: pytest.TempPathFactory,
) -> Iterator[LoopProcess]:
    """Install as services.md describes, and run one loop."""
    shell.run(f"ln -s {ROOT}/docs {ROOT}/examples .")
    shell.run("kubectl create namespace herdsman-system && kubectl create namespace prod")
    shell.run("herdsman crds | kubectl apply --server-side -f -")
    shell.run("kubectl apply --server-side -f docs/install/rbac.yaml -f docs/install/priority-classes.yaml")
    kubeconfig = grant_loop_rights(own_client, own_cluster, tmp_path_factory.mktemp("loop") / "kubeconfig")
    with loop_process(kubeconfig, tmp_path_factory.mktemp("loop")) as running:
        yield running


@pytest.fixture
def chat(shell: Shell, loop: LoopProcess, own_client: KubeClient) -> Iterator[KubeClient]:
    """A service `chat` in namespace `prod` with its pods, and its file, service.yaml."""
    write(shell, context=8192)
    shell.run("kubectl apply -f service.yaml")
    settled(own_client, NAMESPACE, "chat")
    eventually(lambda: len(own_client.list(kinds.PODS, NAMESPACE)["items"]) == 2, what="both pods")
    yield own_client
    shell.run("kubectl annotate namespace prod herdsman.dev/mode-")
    shell.run("kubectl delete -f service.yaml --wait --cascade=foreground")
    eventually(lambda: find(own_client, kinds.DEPLOYMENTS, NAMESPACE, "chat") is None, what="the Deployment to go")
    eventually(lambda: not own_client.list(kinds.EVENTS, NAMESPACE)["items"] or forget(own_client), what="no Events")


def forget(client: KubeClient) -> None:
    for event in client.list(kinds.EVENTS, NAMESPACE)["items"]:
        client.delete(kinds.EVENTS, NAMESPACE, event["metadata"]["name"])


def write(shell: Shell, *, context: int) -> None:
    (shell.folder / "service.yaml").write_text(SERVICE.replace("CONTEXT", str(context)))


def edit_by_hand(shell: Shell, kind: str, before: str, after: str) -> None:
    """Run `kubectl edit` with an editor that replaces a text."""
    editor = f"sed -i 's/{before}/{after}/'"
    Shell(shell.folder, {**shell.environment, "KUBE_EDITOR": editor}).run(f"kubectl edit {kind}")


def await_argument(client: KubeClient, words: str) -> None:
    eventually(lambda: words in arguments(deployed(client, NAMESPACE, "chat")), what=f"`{words}` to be applied")


def check(shell: Shell, guide: str, command: str, *, answer: str = "") -> None:
    """Run a command that a guide quotes with its output, and compare code and output."""
    [step] = [each for each in steps((GUIDES / guide).read_text("utf-8")) if each.command == command]
    assert step.output, f"{guide} quotes no output of `{command}`"
    wrong = difference(step.output, shell.run(command, answer=answer, codes=(step.code,)), step.varies)
    assert wrong is None, wrong


def test_previews_are_as_the_guide_shows_them(shell: Shell, chat: KubeClient) -> None:
    write(shell, context=32768)
    check(shell, "preview.md", "herdsman preview -f service.yaml")
    shell.run("herdsman preview -f service.yaml -o markdown > preview.md || code=$?; [ $code = 2 ]")
    assert (shell.folder / "preview.md").read_text().startswith("### Herdsman preview: 1 service would change")
    (shell.folder / "policies").mkdir()
    policy = {"apiVersion": "herdsman.dev/v1alpha1", "kind": "Policy", "metadata": {"name": "small"}}
    rule = {"name": "context", "cel": "service.spec.contextSize <= 16384", "message": "contexts are small"}
    (shell.folder / "policies/small.yaml").write_text(json.dumps({**policy, "spec": {"rules": [rule]}}))
    assert "contexts are small" in shell.run("herdsman preview -f service.yaml --policies policies/", codes=(1,))
    edit(chat, NAMESPACE, "chat", replicas=2)
    for command in (
        "herdsman preview --live chat -n prod",
        "herdsman preview --all -n prod",
        "herdsman preview -A",
    ):
        assert "change" in shell.run(command)
    shell.run("herdsman preview --all")


def test_an_approval_is_as_the_guide_shows_it(shell: Shell, chat: KubeClient) -> None:
    shell.run("kubectl annotate namespace prod herdsman.dev/mode=Preview")
    eventually(lambda: status(chat, NAMESPACE, "chat").get("phase"), what="a status")
    edit_by_hand(shell, CHAT, "replicas: 2", "replicas: 3")
    eventually(lambda: status(chat, NAMESPACE, "chat").get("pendingChange"), what="a pending change")
    check(shell, "approve-changes.md", "herdsman approve chat -n prod", answer="y")
    assert deployed(chat, NAMESPACE, "chat")["spec"]["replicas"] == 3
    edit_by_hand(shell, CHAT, "replicas: 3", "replicas: 4")
    digest = eventually(lambda: status(chat, NAMESPACE, "chat").get("pendingChange"), what="a change")["digest"]
    assert "AwaitingApproval" in shell.run("kubectl describe inferenceservices.inference.llmkube.dev chat -n prod")
    shell.run(f"herdsman approve chat -n prod --timeout 300 --digest {'0' * 16}", codes=(3,))
    shell.run(f"herdsman approve chat -n prod --timeout 300 --digest {digest}")
    shell.run("herdsman approve chat -n prod", codes=(2,))


def test_a_history_is_as_the_guide_shows_it(shell: Shell, loop: LoopProcess, chat: KubeClient) -> None:
    shell.run(f'kubectl annotate {CHAT} kubernetes.io/change-cause="longer context for the agents"')
    edit_by_hand(shell, CHAT, "contextSize: 8192", "contextSize: 32768")
    await_argument(chat, "--ctx-size 32768")
    versions = "kubectl get controllerrevisions -n prod -l inference.llmkube.dev/service=chat"
    eventually(lambda: "chat-v2" in shell.run(versions), what="the second version")
    eventually(lambda: len(chat.list(kinds.PODS, NAMESPACE)["items"]) == 3, what="the new pod beside the old ones")
    assert "revision" in shell.run("herdsman rollback chat -n prod --dry-run", codes=(2,)).lower()
    shell.run("herdsman rollback chat -n prod --to 1 --dry-run", codes=(2,))
    check(shell, "history.md", "herdsman rollback chat -n prod", answer="y")
    await_argument(chat, "--ctx-size 8192")
    eventually(lambda: "chat-v3" in shell.run(versions), what="the third version")
    check(shell, "history.md", "herdsman history chat -n prod")
    assert "contextSize: 32768" in shell.run("herdsman history chat -n prod --revision 2")
    shell.run(f"herdsman export chat -n prod --state file://{loop.state} > prod.json")
    check_that_pulumi_reads(shell, chat)


def check_that_pulumi_reads(shell: Shell, client: KubeClient) -> None:
    """Import prod.json into another stack with the plain CLI; the Deployment must survive the removal of that stack."""
    home = shell.folder / "home"
    variables = {"HOME": str(home), "PULUMI_CONFIG_PASSPHRASE": "another", "PULUMI_SKIP_UPDATE_CHECK": "true"}
    shell.run("mkdir -p home/state look")
    (shell.folder / "look/Pulumi.yaml").write_text("name: herdsman\nruntime: python\n")
    look = Shell(shell.folder / "look", {**shell.environment, **variables})
    look.run(f"pulumi login file://{home}/state")
    look.run("pulumi stack init prod && pulumi stack import --file ../prod.json")
    assert "Deployment" in look.run("pulumi stack --show-urns")
    look.run("pulumi stack output endpoints --json --stack prod", codes=(0, 1, 255))
    look.run("pulumi stack rm --force --yes --stack prod")
    assert deployed(client, NAMESPACE, "chat")


def test_drift_is_as_the_guide_shows_it(shell: Shell, chat: KubeClient) -> None:
    shell.run("herdsman drift -n prod")
    edit_by_hand(shell, "service chat -n prod", "type: ClusterIP", "type: NodePort")
    eventually(lambda: messages(chat, "DriftRepaired"), what="the repair of the Service")
    check(shell, "drift.md", "kubectl get events -n prod --field-selector reason=DriftRepaired")
    shell.run(f"kubectl annotate {CHAT} herdsman.dev/drift=report")
    shell.run("sleep 2")
    edit_by_hand(shell, "service chat -n prod", "type: ClusterIP", "type: NodePort")
    eventually(lambda: messages(chat, "DriftReported"), what="a report")
    check(shell, "drift.md", "herdsman drift -n prod")
    assert json.loads(shell.run("herdsman drift chat -n prod -o json", codes=(2,)))["drifted"]


def messages(client: KubeClient, reason: str) -> list[str]:
    return [event["message"] for event in client.list(kinds.EVENTS, NAMESPACE)["items"] if event["reason"] == reason]


def test_a_service_is_looked_at_as_in_the_guides(shell: Shell, loop: LoopProcess, chat: KubeClient) -> None:
    assert "chat" in shell.run("herdsman get") and "base" in shell.run("herdsman get models -n prod")
    assert "prod/chat" in shell.run("herdsman describe chat -n prod")
    assert "herdsman" in shell.run("herdsman leaders")
    port = loop.url.rpartition(":")[2]
    assert shell.run(f"curl -s localhost:{port}/metrics | grep herdsman_leader").strip().endswith("1.0")
    assert "leader" in shell.run("herdsman doctor", codes=(0, 1))
    shell.run(f"herdsman doctor --state file://{loop.state}", codes=(0, 1))
    assert "chat" in shell.run("kubectl get inferenceservices.inference.llmkube.dev -A")
    shell.run("herdsman host add studio --address 192.0.2.9")
    assert "studio" in shell.run("herdsman doctor host studio", codes=(0, 1))
    assert "studio" in shell.run("herdsman host list")
    shell.run("herdsman host cordon studio && herdsman host drain studio && herdsman host uncordon studio")
    shell.run("herdsman doctor hosts", codes=(1,))
    shell.run("herdsman host remove studio", codes=(0, 1))
    doctor = shell.run("herdsman doctor agent -- --host mac-1 --plan-source http --store agent", codes=(0, 1))
    quoted = [step.output for step in steps((GUIDES / "install-agent.md").read_text("utf-8")) if step.output]
    checks = [re.split("  +", line)[:2] for line in quoted[0].splitlines()]
    assert len(checks) > 5 and [re.split("  +", line)[:2] for line in doctor.splitlines()] == checks
    shell.run(f"kubectl annotate {CHAT} herdsman.dev/host- herdsman.dev/host-selector-")


def test_kubectl_works_as_in_the_guides(shell: Shell, chat: KubeClient) -> None:
    shell.run("kubectl get deployment chat -n prod -o yaml --show-managed-fields | grep managedFields")
    shell.run("kubectl explain inferenceservices.inference.llmkube.dev.spec")
    remove = '[{"op": "remove", "path": "/spec/strategy/rollingUpdate/maxSurge"}]'
    shell.run(f"kubectl patch deployment chat -n prod --type json -p '{remove}'")
    shell.run("kubectl scale deployment chat -n prod --replicas 1")
    for namespace, deployment in (("llmkube-system", "llmkube"), ("kserve", "llmisvc-controller-manager")):
        shell.run(f"kubectl create namespace {namespace}")
        shell.run(f"kubectl create deployment {deployment} -n {namespace} --image registry.example/peer")
    shell.run("kubectl -n llmkube-system scale deployment --all --replicas 0")
    shell.run("kubectl -n kserve scale deployment llmisvc-controller-manager --replicas 0")
    shell.run("kubectl -n kserve rollout restart deployment llmisvc-controller-manager")
    shell.run("kubectl -n kserve get pods")
    shell.run("kubectl -n herdsman-gateways get leases -o yaml")
    shell.run("herdsman crds > crds.yaml")
    shell.run("kubectl apply --server-side --force-conflicts -f crds.yaml")
    shell.run("echo key > id_ed25519")
    shell.run(
        "kubectl -n herdsman-system create secret generic old-server "
        "--type kubernetes.io/ssh-auth --from-file ssh-privatekey=id_ed25519"
    )
    own_certificate(shell.folder)
    shell.run("kubectl -n herdsman-system create secret tls herdsman-gateway-tls --cert=server.pem --key=server.pem ")


def test_presets_of_kserve_are_changed_as_in_the_guide(shell: Shell, loop: LoopProcess, chat: KubeClient) -> None:
    shell.run("herdsman crds --dialect kserve | kubectl create -f -")
    shell.run("herdsman crds --dialect llmaz | kubectl create -f -")
    served = "kubectl get crd llminferenceservices.serving.kserve.io -o jsonpath='{.status.storedVersions}'"
    assert "v1alpha2" in shell.run(served)
    assert "template" in shell.run(f"cd {ROOT}; python -m program.dialects.kserve.presets")
    shell.run(f"cd {ROOT}; python -m tools.tiny_model {shell.folder}/tiny.gguf")
    shell.run(f"(cd {ROOT}; python -m program.dialects.kserve.presets template) > template.yaml")
    shell.run("kubectl create namespace kserve", codes=(0, 1))
    apply = "kubectl apply --namespace kserve --filename template.yaml"
    eventually(lambda: "kserve-config" in shell.run(apply, codes=(0, 1)), what="the preset to be accepted")
    shell.run("kubectl annotate llminferenceserviceconfigs -n kserve --all herdsman.dev/controller=herdsman")
    shell.run("kubectl -n kserve create configmap inferenceservice-config --from-literal=deploy={}")
    settings = '{"data": {"herdsman": "{\\"configPrefix\\": \\"v2-kserve-\\"}"}}'
    shell.run(f"kubectl -n kserve patch configmap inferenceservice-config --patch '{settings}'")
    shell.run("kubectl annotate namespace kserve herdsman.dev/controller=kserve")
    shell.run("kubectl -n kserve delete llminferenceserviceconfigs kserve-config-llm-template")
