"""Services move from the loop into a static fleet and back: the same Deployments, the same pods, no restarts.

Covered: the preview and that it changes nothing; `take`, followed by `pulumi up` without a change of any pod template;
a service that is created again for the loop while the fleet has it; `give`, with the service removed from the stack and
not removed; and that neither side deletes objects of the other.
"""

from __future__ import annotations

import os
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
import yaml

from components import naming
from kubeapi import kinds
from kubeapi.client import KubeClient
from kubeapi.json_types import Json
from tests.engine.test_static_fleet_places import Project
from tests.support.loop import LoopProcess, deployed, eventually, find, http_folder, model, service, settled, status
from tools.tiny_model import write_tiny_model

pytestmark = pytest.mark.soak

NAMES = ("chat", "code")


@pytest.fixture
def weights(tmp_path: Path) -> Iterator[str]:
    """The URL of a model file whose header has another name than the Model."""
    folder = tmp_path / "weights"
    folder.mkdir()
    write_tiny_model(folder / "tiny.gguf")
    with http_folder(folder) as url:
        yield f"{url}/tiny.gguf"


@pytest.fixture
def priority(client: KubeClient, namespace: str) -> Iterator[str]:
    """A PriorityClass, without which the API server refuses pods that name it."""
    client.create(kinds.PRIORITY_CLASSES, None, {"metadata": {"name": namespace}, "value": 1})
    yield namespace
    client.delete(kinds.PRIORITY_CLASSES, None, namespace)


def run(kubeconfig: Path, project: Project, *arguments: str) -> tuple[int, str]:
    environment = {**os.environ, **project.stack._environment, "PULUMI_HOME": str(project.stack._directory / "home")}
    command = [sys.executable, "-m", "automation.cli", "fleet", *arguments]
    if arguments[0] != "forget":
        command.append(f"--kubeconfig={kubeconfig}")
    done = subprocess.run(command, capture_output=True, text=True, env=environment, timeout=180, check=False)
    return done.returncode, done.stdout + done.stderr


def pods(client: KubeClient, namespace: str) -> set[str]:
    return {pod["metadata"]["uid"] for pod in client.list(kinds.PODS, namespace)["items"]}


def looks(client: KubeClient, namespace: str) -> Json:
    """The state that must not change: Deployments, Services, pods and pod templates."""
    found = {}
    for name in NAMES:
        deployment = client.get(kinds.DEPLOYMENTS, namespace, name)
        assert "deletionTimestamp" not in deployment["metadata"]
        metadata = deployment["metadata"]
        # The generation counts annotations too; the revision counts pod templates.
        revision = metadata["annotations"]["deployment.kubernetes.io/revision"]
        address = client.get(kinds.SERVICES, namespace, name)
        found[name] = (metadata["uid"], revision, deployment["spec"]["template"], address["metadata"]["uid"])
    return {**found, "pods": pods(client, namespace)}


def owners(client: KubeClient, namespace: str, name: str) -> list[str]:
    references = client.get(kinds.DEPLOYMENTS, namespace, name)["metadata"].get("ownerReferences") or []
    return [reference["uid"] for reference in references]


def test_services_move_to_a_fleet_and_back_and_nothing_restarts(
    client: KubeClient,
    namespace: str,
    loop: LoopProcess,
    loop_kubeconfig: Path,
    kubeconfig: Path,
    project: Project,
    weights: str,
    priority: str,
) -> None:
    model(client, namespace, source=weights)
    service(client, namespace, "chat", replicas=2, priorityClassName=priority)
    service(client, namespace, "code", autoscaling={"minReplicas": 1, "maxReplicas": 3}, priorityClassName=priority)
    for name in NAMES:
        deployed(client, namespace, name)
        settled(client, namespace, name)
    eventually(lambda: len(pods(client, namespace)) >= 3, what="the pods", timeout_s=120)
    before = looks(client, namespace)
    files = project.root / "taken.yaml"

    # A preview changes nothing.
    code, said = run(kubeconfig, project, "take", *NAMES, "-n", namespace, "--into", str(files), "--dry-run")
    assert code == 0, said
    assert "HorizontalPodAutoscaler code" in said and not files.exists()
    assert owners(client, namespace, "chat") and looks(client, namespace) == before

    # From the loop into the fleet.
    code, said = run(kubeconfig, project, "take", *NAMES, "-n", namespace, "--into", str(files))
    assert code == 0, said
    config = yaml.safe_load(said[said.index("config:") :].split("The loop no longer manages")[0])["config"]
    assert config["herdsman:namespace"] == namespace
    assert find(client, kinds.INFERENCE_SERVICES, namespace, "chat") is None
    eventually(lambda: _loop_is_quiet(loop), what="the end of the loop's engine runs", timeout_s=90)
    assert looks(client, namespace) == before
    assert owners(client, namespace, "chat") == []
    revisions = client.list(kinds.CONTROLLER_REVISIONS, namespace)["items"]
    assert not [each for each in revisions if each["metadata"]["name"].startswith(NAMES)]
    written = {doc["kind"]: doc for doc in yaml.safe_load_all(files.read_text())}
    assert written["Model"]["status"]["path"].endswith(".gguf")

    project.configure(manifests="taken.yaml", namespace=namespace)
    planned = project.stack.preview(project.program)
    assert planned.operations("llmkube/chat/deployment")[0] == "import"
    assert not planned.steps("create"), "all of it is there"
    project.stack.up(project.program)
    assert looks(client, namespace) == before, "`pulumi up` adopts the objects in the cluster"
    for kind, name in ((kinds.DEPLOYMENTS, "chat"), (kinds.AUTOSCALERS, "code"), (kinds.SERVICES, "code")):
        annotations = client.get(kind, namespace, name)["metadata"]["annotations"]
        assert annotations[naming.ANNOTATION_FLEET] == "herdsman/dev"
    assert set(project.stack.preview(project.program).steps().values()) == {"same"}

    # The loop leaves the fleet's objects alone, also after a restart and after a service of the same name is created.
    loop.stop()
    loop.start()
    service(client, namespace, "chat", replicas=1)
    told = eventually(lambda: _of_fleets(client, namespace), what="the loop to say who has the service", timeout_s=90)
    assert "static fleet `herdsman/dev`" in told
    assert f"herdsman fleet give inferenceservice/chat -n {namespace} -f FILES --stack dev" in told
    client.delete(kinds.INFERENCE_SERVICES, namespace, "chat")
    eventually(lambda: _loop_is_quiet(loop), what="the end of the loop's engine runs", timeout_s=90)
    assert looks(client, namespace) == before

    # From the fleet to the loop; one service is removed from the stack, and the other is not.
    where = ("-n", namespace, "-f", str(files))
    stack = ("--stack", "dev", "--cwd", str(project.stack._directory / "work"))
    code, said = run(kubeconfig, project, "give", "code", *where, *stack, "--dry-run")
    assert code == 0 and "would forget" in said, said
    assert find(client, kinds.INFERENCE_SERVICES, namespace, "code") is None
    code, said = run(kubeconfig, project, "give", "code", *where, *stack)
    assert code == 0, said
    code, said = run(kubeconfig, project, "give", "chat", *where)
    assert code == 0 and "herdsman fleet forget" in said, said
    for name in NAMES:
        settled(client, namespace, name)
        cr = client.get(kinds.INFERENCE_SERVICES, namespace, name)
        assert owners(client, namespace, name) == [cr["metadata"]["uid"]]
    assert looks(client, namespace) == before
    held = project.stack.state()
    assert "llmkube/chat/deployment" in held and "llmkube/code/deployment" not in held

    # A stack that still contains one of the services changes and deletes none of its objects.
    assert "belongs to controller InferenceService" in project.stack.fails(project.program)
    assert looks(client, namespace) == before
    project.stack.destroy()
    assert looks(client, namespace) == before
    assert run(kubeconfig, project, "forget", "chat", "-n", namespace, *stack)[0] == 0


def _loop_is_quiet(loop: LoopProcess) -> bool:
    """Return whether the number of engine processes stays the same for 3 s."""
    first = loop.metric("herdsman_engine_cli_processes_total")

    time.sleep(3)
    return loop.metric("herdsman_engine_cli_processes_total") == first


def _of_fleets(client: KubeClient, namespace: str) -> str:
    said = [str(each["message"]) for each in status(client, namespace, "chat").get("conditions", ())]
    return next((message for message in said if "fleet" in message), "")
