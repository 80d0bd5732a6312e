"""Services of KServe and llmaz move from the loop into a static fleet and back: the same pods, no object created twice.

Covered: referenced objects move with the service; the ServiceAccount, the ClusterRoleBinding and the certificate of a
KServe service; an autoscaler whose target is a custom resource that a fleet does not have; a stack that still contains
the services.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
import yaml

from automation.cli.main import invoke
from components import naming
from kubeapi import kinds
from kubeapi.client import KubeClient
from kubeapi.json_types import Json
from tests.engine.test_static_fleet_places import Project
from tests.loop.test_moving import pods
from tests.support import dialects
from tests.support.loop import LoopProcess, eventually, find, loop_process

pytestmark = pytest.mark.soak

DEPLOYMENTS = ("chat", "talk-kserve", "talk-kserve-router-scheduler")
SERVICES = ((kinds.PLAYGROUNDS, "chat"), (kinds.LLM_SERVICES, "talk"))
SECRET = "talk-kserve-self-signed-certs"


@pytest.fixture
def fleet(
    project: Project, kubeconfig: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> Callable[..., tuple[int, str]]:
    """Run `herdsman fleet …`, with the project's Pulumi."""
    for name, value in {**project.stack._environment, "PULUMI_HOME": str(project.stack._directory / "home")}.items():
        monkeypatch.setenv(name, value)

    def run(*arguments: str) -> tuple[int, str]:
        capsys.readouterr()
        where = () if arguments[0] == "forget" else (f"--kubeconfig={kubeconfig}",)
        code = invoke(["fleet", *arguments, *where])
        told = capsys.readouterr()
        return code, told.out + told.err

    return run


@pytest.fixture
def loop(client: KubeClient, loop_kubeconfig: Path, pulumi_cli: Path, tmp_path: Path) -> Iterator[LoopProcess]:
    """A loop on a cluster with the kinds of both dialects, without KEDA and without LeaderWorkerSets."""
    with dialects.needed(client, (kinds.HTTP_ROUTES, kinds.INFERENCE_POOLS)):
        for family in ("kserve", "llmaz"):
            dialects.install(client, family)
        with loop_process(loop_kubeconfig, tmp_path / "loop") as running:
            yield running
        for family in ("kserve", "llmaz"):
            dialects.uninstall(client, family)


def document(kind: kinds.Kind, name: str, spec: Json) -> Json:
    return {"apiVersion": kind.api_version, "kind": kind.kind, "metadata": {"name": name}, "spec": spec}


def make(client: KubeClient, namespace: str, model: str) -> None:
    """Create a Playground with an autoscaler, and an LLMInferenceService with a config, an endpoint picker, a route."""
    source = {"modelHub": {"modelID": "acme/tiny-GGUF", "filename": "tiny.gguf"}}
    client.create(kinds.OPEN_MODELS, None, document(kinds.OPEN_MODELS, model, {"familyName": "acme", "source": source}))
    cpu = {"type": "Resource", "resource": {"name": "cpu", "target": {"type": "Utilization", "averageUtilization": 70}}}
    playing = {
        "modelClaim": {"modelName": model},
        "replicas": 2,
        "backendRuntimeConfig": {"backendName": "llamacpp", "resources": {"requests": {"cpu": "10m", "memory": "8Mi"}}},
        "elasticConfig": {"minReplicas": 2, "maxReplicas": 3, "scaleTrigger": {"hpa": {"metrics": [cpu]}}},
    }
    client.create(kinds.PLAYGROUNDS, namespace, document(kinds.PLAYGROUNDS, "chat", playing))
    client.create(kinds.LLM_CONFIGS, namespace, document(kinds.LLM_CONFIGS, "small", {"replicas": 1}))
    engine = {"name": "main", "image": "registry.example/engine:1", "command": ["serve"]}
    talking = {
        "model": {"uri": "hf://acme/tiny"},
        "baseRefs": [{"name": "small"}],
        "template": {"containers": [engine]},
        "router": {"scheduler": {}, "route": {}, "gateway": {}},
    }
    client.create(kinds.LLM_SERVICES, namespace, document(kinds.LLM_SERVICES, "talk", talking))


def looks(client: KubeClient, namespace: str) -> Json:
    """The state that must not change: Deployments, pods and pod templates."""
    found: Json = {"pods": pods(client, namespace)}
    for name in DEPLOYMENTS:
        live = client.get(kinds.DEPLOYMENTS, namespace, name)
        revision = live["metadata"]["annotations"]["deployment.kubernetes.io/revision"]
        found[name] = (live["metadata"]["uid"], revision, live["spec"]["replicas"], live["spec"]["template"])
    return found


def made(client: KubeClient, namespace: str) -> list[tuple[kinds.Kind, str | None, str]]:
    """The objects of these services, with at least one of each kind."""
    return [
        *((kinds.DEPLOYMENTS, namespace, name) for name in DEPLOYMENTS),
        (kinds.AUTOSCALERS, namespace, "chat"),
        (kinds.SERVICES, namespace, "chat-lb"),
        (kinds.SERVICE_ACCOUNTS, namespace, "talk-epp-sa"),
        (kinds.INFERENCE_POOLS, namespace, "talk-inference-pool"),
        (kinds.HTTP_ROUTES, namespace, "talk-kserve-route"),
        (kinds.CLUSTER_ROLE_BINDINGS, None, f"{namespace}-talk-epp-auth-rb"),
    ]


def owners(client: KubeClient, namespace: str, kind: kinds.Kind, name: str) -> list[str]:
    return [each["uid"] for each in client.get(kind, namespace, name)["metadata"].get("ownerReferences") or ()]


def certified(client: KubeClient, namespace: str) -> tuple[str, str]:
    secret = client.get(kinds.SECRETS, namespace, SECRET)
    return secret["metadata"]["uid"], secret["data"]["tls.crt"]


def test_services_of_both_dialects_move_to_a_fleet_and_back(
    client: KubeClient,
    namespace: str,
    loop: LoopProcess,
    project: Project,
    fleet: Callable[..., tuple[int, str]],
) -> None:
    make(client, namespace, namespace)
    for kind, where, name in made(client, namespace):
        eventually(
            lambda kind=kind, where=where, name=name: (
                client.get(kind, where, name)  # type: ignore[misc]
                if kind is kinds.CLUSTER_ROLE_BINDINGS
                else find(client, kind, namespace, name)
            ),
            what=name,
        )
    eventually(lambda: len(pods(client, namespace)) == 4, what="the pods", timeout_s=120)
    before, certificate = looks(client, namespace), certified(client, namespace)
    files = project.root / "taken.yaml"
    take = ("take", "playground/chat", "talk", "-n", namespace, "--into", str(files))

    code, said = fleet(*take, "--dry-run")
    assert code == 0, said
    assert "HorizontalPodAutoscaler chat" in said and not files.exists()
    assert looks(client, namespace) == before and owners(client, namespace, kinds.DEPLOYMENTS, "talk-kserve")

    code, said = fleet(*take)
    assert code == 0, said
    printed = yaml.safe_load(said[said.index("config:") :].split("The loop no longer manages")[0])["config"]
    assert set(printed["herdsman:extensions"]) == {kinds.HTTP_ROUTES.full_name, kinds.INFERENCE_POOLS.full_name}
    for kind, name in SERVICES:
        assert find(client, kind, namespace, name) is None
    written = {each["kind"]: each for each in yaml.safe_load_all(files.read_text())}
    assert written.keys() >= {"OpenModel", "LLMInferenceServiceConfig", "Playground", "LLMInferenceService"}
    assert (looks(client, namespace), certified(client, namespace)) == (before, certificate)

    project.configure(manifests="taken.yaml", namespace=namespace, extensions=printed["herdsman:extensions"])
    project.stack.up(project.program)
    assert (looks(client, namespace), certified(client, namespace)) == (before, certificate)
    for kind, where, name in made(client, namespace):
        metadata = client.get(kind, where, name)["metadata"]
        assert metadata["annotations"][naming.ANNOTATION_FLEET] == "herdsman/dev", name
        assert not metadata.get("ownerReferences"), name
    scaled = client.get(kinds.AUTOSCALERS, namespace, "chat")["spec"]["scaleTargetRef"]
    assert (scaled["kind"], scaled["name"]) == ("Deployment", "chat"), "a fleet has no Playground to scale"
    assert set(project.stack.preview(project.program).steps().values()) == {"same"}

    # Back to the loop; one service is removed from the stack, and the other is not.
    where = ("-n", namespace, "-f", str(files))
    stack = ("--stack", "dev", "--cwd", str(project.stack._directory / "work"))
    code, said = fleet("give", "playground/chat", *where, *stack)
    assert code == 0, said
    code, said = fleet("give", "talk", *where)
    assert code == 0 and "herdsman fleet forget" in said, said
    for kind, name in SERVICES:
        uid = client.get(kind, namespace, name)["metadata"]["uid"]
        deployment = "chat" if kind is kinds.PLAYGROUNDS else "talk-kserve"
        assert owners(client, namespace, kinds.DEPLOYMENTS, deployment) == [uid]
        if kind is kinds.LLM_SERVICES:
            assert owners(client, namespace, kinds.SECRETS, SECRET) == [uid]
    scaled = client.get(kinds.AUTOSCALERS, namespace, "chat")["spec"]["scaleTargetRef"]
    assert (scaled["kind"], scaled["name"]) == ("Playground", "chat")

    # A stack that still contains one of the services deletes none of its objects.
    held = project.stack.state()
    assert "kserve/talk/pods/main" in held and not [name for name in held if name.startswith("llmaz/chat")]
    project.stack.destroy()
    assert fleet("forget", "talk", "-n", namespace, *stack)[0] == 0
    for kind, at, name in made(client, namespace):
        assert "deletionTimestamp" not in client.get(kind, at, name)["metadata"], name
    assert (looks(client, namespace), certified(client, namespace)) == (before, certificate)
