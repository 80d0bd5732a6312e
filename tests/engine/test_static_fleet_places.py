"""Static fleets over several places: namespaces, two clusters, hosts; with plugins that the engine starts itself.

Covered: distinct names, each object in its place, a warning for unused settings, all errors of the config in one
message, refresh and destroy in every place, claims that stay, no cluster at all, annotations that keep a loop away.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Awaitable, Callable, Iterator
from pathlib import Path
from typing import Any

import pulumi.automation as auto
import pytest
import yaml

from agent.client.http import HttpHost
from agent.client.port import ProcessNotFound
from automation.cli.provider import PLUGINS, plugin_folder
from components import naming
from kubeapi import kinds
from kubeapi.client import KubeClient
from kubeapi.json_types import Json
from program.__main__ import register_fleet
from tests.engine.stacks import Stack
from tests.support.agents import AgentProcess, agent
from tests.support.sshd import sshd
from tools.localcluster import LocalCluster
from tools.tiny_model import write_tiny_model

pytestmark = pytest.mark.soak

API = "inference.llmkube.dev/v1alpha1"


def model(name: str = "base", **spec: Any) -> Json:
    source = {"source": "https://example.com/base.gguf"}
    return {"apiVersion": API, "kind": "Model", "metadata": {"name": name}, "spec": {**source, **spec}}


def service(name: str, *, namespace: str | None = None, annotations: Json | None = None, **spec: Any) -> Json:
    metadata: Json = {"name": name, **({"namespace": namespace} if namespace else {})}
    if annotations:
        metadata["annotations"] = annotations
    return {"apiVersion": API, "kind": "InferenceService", "metadata": metadata, "spec": {"modelRef": "base", **spec}}


class Project:
    """A project folder, its config, and the stack that is made of it."""

    def __init__(self, root: Path, stack: Stack) -> None:
        self.root = root
        self.stack = stack
        root.mkdir()

    def write(self, name: str, *documents: Json) -> None:
        path = self.root / name
        path.parent.mkdir(exist_ok=True)
        path.write_text(yaml.safe_dump_all(documents))

    def configure(self, **values: Any) -> None:
        config = {
            f"herdsman:{key}": auto.ConfigValue(value if isinstance(value, str) else json.dumps(value))
            for key, value in values.items()
        }
        self.stack.select(self.program).set_all_config(config)

    def program(self) -> Awaitable[None]:
        return register_fleet(self.root)


@pytest.fixture
def started(
    tmp_path: Path, pulumi_command: auto.PulumiCommand, kubeconfig: Path, monkeypatch: pytest.MonkeyPatch
) -> Project:
    """A project whose engine starts the plugins from PATH, as a user's does."""
    with monkeypatch.context() as patched:
        patched.setenv("HERDSMAN_CACHE", str(tmp_path / "cache"))
        folder = plugin_folder()
    assert {path.name for path in folder.iterdir()} == set(PLUGINS)
    environment = {"PATH": f"{folder}{os.pathsep}{os.environ['PATH']}", "KUBECONFIG": str(kubeconfig)}
    return Project(tmp_path / "project", Stack(tmp_path / "stack", pulumi_command, environment, passphrase=True))


@pytest.fixture
def attached(tmp_path: Path, cli_stack: Stack) -> Project:
    """A project whose engine is attached to the provider of this process."""
    return Project(tmp_path / "project", cli_stack)


@pytest.fixture
def second(fresh_control_plane: Callable[..., LocalCluster]) -> Iterator[tuple[LocalCluster, KubeClient]]:
    """Another cluster."""
    cluster = fresh_control_plane(components=("etcd", "kube-apiserver"))
    client = KubeClient.from_kubeconfig(str(cluster.kubeconfig))
    yield cluster, client
    client.close()


@pytest.fixture(scope="module")
def tiny_model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_tiny_model(tmp_path_factory.mktemp("models") / "tiny.gguf")


@pytest.fixture
def hosted(tmp_path: Path, tiny_model: Path, llama_server: Path) -> Iterator[tuple[AgentProcess, HttpHost]]:
    """An agent without a cluster."""
    allowed = ("--allowed-host-path-roots", str(tiny_model.parent))
    options = ("--plan-source", "http", "--address", "127.0.0.1", *allowed)
    with agent(tmp_path / "store", *options, host="studio") as made:
        yield made, made.start()


def names(client: KubeClient, namespace: str, kind: kinds.Kind = kinds.DEPLOYMENTS) -> set[str]:
    return {item["metadata"]["name"] for item in client.list(kind, namespace)["items"]}


def test_one_stack_spans_two_clusters_their_namespaces_and_a_host(
    started: Project,
    client: KubeClient,
    namespace: str,
    second: tuple[LocalCluster, KubeClient],
    hosted: tuple[AgentProcess, HttpHost],
    tiny_model: Path,
) -> None:
    cluster, elsewhere = second
    running, host = hosted
    other = f"{namespace}-b"
    client.create(kinds.NAMESPACES, None, {"metadata": {"name": other}})
    started.write("here/a.yaml", model(), service("chat"))
    of_other = [{**doc, "metadata": {**doc["metadata"], "namespace": other}} for doc in (model(), service("chat"))]
    started.write("here/b.yaml", *of_other)
    started.write("there.yaml", model(), service("chat", annotations={"herdsman.dev/idle-timeout": "5m"}))
    started.write(
        "hosts.yaml",
        model("tiny", source=f"file://{tiny_model}"),
        service("desk", modelRef="tiny", annotations={naming.ANNOTATION_HOST: "studio"}),
    )
    started.configure(
        manifests=["here", "hosts.yaml"],
        namespace=namespace,
        clusters={"eu": {"kubeconfig": str(cluster.kubeconfig), "context": "local", "manifests": "there.yaml"}},
        hosts={
            "studio": {"transport": "agent", "endpoint": running.url, "tokenFile": str(running.store / "agent-token")}
        },
    )
    context = yaml.safe_load(cluster.kubeconfig.read_text())["current-context"]
    clusters = {"eu": {"kubeconfig": str(cluster.kubeconfig), "context": context, "manifests": "there.yaml"}}
    started.stack.select(started.program).set_config("herdsman:clusters", auto.ConfigValue(json.dumps(clusters)))

    planned = started.stack.preview(started.program)
    assert (
        "eu: there.yaml document 2: InferenceService `chat`: metadata.annotations[herdsman.dev/idle-timeout]"
        in planned.text
    )
    assert "desk gets 2,048 tokens of context, the longest that fits" in planned.text
    assert names(client, namespace) == names(client, other) == names(elsewhere, "default") == set()
    started.stack.up(started.program)
    assert names(client, namespace) == names(client, other) == names(elsewhere, "default") == {"chat"}
    state = started.stack.state()
    assert {
        "llmkube/chat/deployment",
        f"llmkube/chat@{other}/deployment",
        "llmkube/chat@default@eu/deployment",
        "llmkube/desk/process",
        f"cache/{naming.CACHE_CLAIM}/claim",
        f"cache/{naming.CACHE_CLAIM}@{other}/claim",
    } <= set(state)
    assert {key for key in state["eu"]["inputs"] if key not in ("version", "__internal")} == {"kubeconfig", "context"}
    assert "PRIVATE KEY" not in started.stack.files(), (
        "the state holds the path of a kubeconfig, and none of its content"
    )
    report = host.get(f"{namespace}/desk").report
    assert report.ready, "up returns when the process serves"
    assert state["llmkube/desk/process"]["inputs"]["defaultContext"] == "2048"
    made = client.get(kinds.DEPLOYMENTS, namespace, "chat")
    assert made["metadata"]["annotations"][naming.ANNOTATION_FLEET] == "herdsman/dev"

    again = started.stack.preview(started.program)
    assert set(again.steps().values()) == {"same"}

    # A manual change in the other cluster is found by refresh and reverted.
    elsewhere.patch(kinds.DEPLOYMENTS, "default", "chat", {"spec": {"replicas": 3}})
    started.stack.refresh()
    assert started.stack.up(started.program).steps("update").keys() == {"llmkube/chat@default@eu/deployment"}
    assert elsewhere.get(kinds.DEPLOYMENTS, "default", "chat")["spec"]["replicas"] == 1

    started.stack.destroy()
    for at, where in ((client, namespace), (client, other), (elsewhere, "default")):
        assert names(at, where) == set()
        assert naming.CACHE_CLAIM in names(at, where, kinds.CLAIMS), "claims with models stay"
    with pytest.raises(ProcessNotFound):
        host.get(f"{namespace}/desk")
    client.delete(kinds.NAMESPACES, None, other)


def test_a_fleet_of_hosts_needs_no_cluster(
    started: Project, tmp_path: Path, tiny_model: Path, llama_server: Path
) -> None:
    started.stack._environment["KUBECONFIG"] = str(tmp_path / "no-such-kubeconfig")
    with sshd(tmp_path / "host", binaries=[llama_server]) as server:
        (started.root / "known_hosts").write_text(f"[{server.address}]:{server.port} {server.host_key}\n")
        started.write(
            "all.yaml",
            model(source=f"file://{tiny_model}"),
            service("chat", contextSize=256, annotations={naming.ANNOTATION_HOST: "old-server"}),
        )
        started.configure(
            manifests="all.yaml",
            hosts={
                "old-server": {
                    "transport": "ssh",
                    "address": server.address,
                    "port": server.port,
                    "user": server.user,
                    "allowRoot": server.user == "root",
                    "identityFile": str(server.user_key),
                    "knownHosts": "known_hosts",
                    "store": str(server.store),
                }
            },
        )
        planned = started.stack.preview(started.program)
        assert "On the host of default/chat" in planned.text
        assert not server.store.exists()
        started.stack.up(started.program)
        assert (server.store / "plans").exists() or any(server.store.rglob("*chat*"))
        made = started.stack.state()["llmkube/chat/process"]
        assert made["type"] == "herdsman:index:HostProcess"
        assert made["outputs"]["phase"] == "Ready"
        assert not [name for name in started.stack.state() if "kubernetes" in name]
        assert started.stack.refresh().text.count("unchanged") <= 2
        started.stack.destroy()
        assert not [line for line in _processes() if str(server.store) in line and "llama-server" in line]


def _processes() -> list[str]:
    return subprocess.run(["ps", "-eo", "args"], capture_output=True, text=True, check=True).stdout.splitlines()


def test_all_that_is_wrong_with_the_config_is_said_at_once(attached: Project) -> None:
    attached.write("all.yaml", model(), service("chat"), service("dot.ted"), service("dot-ted"))
    attached.configure(
        manifests="all.yaml",
        clusters={"eu": {"context": 7, "manifest": "x"}, "us@1": {"manifests": "x"}},
        hosts={"studio": {"transport": "ssh", "user": "llm"}, "mac": {"endpoint": "https://mac:9190"}},
        extensions=["PodMonitor"],
        options={"cacheAccessMode": "Sometimes", "initimage": "x"},
        typo="x",
    )
    said = attached.stack.fails(attached.program)
    for words in (
        "herdsman:clusters.eu.context: input should be a valid string",
        "herdsman:clusters.eu.manifests: is required",
        "herdsman:clusters.eu.manifest: is not a property of it",
        "herdsman:clusters: `us@1` is not a name",
        "herdsman:hosts.studio.address: is required",
        "herdsman:hosts.studio.identityFile: is required",
        "herdsman:hosts.mac.tokenFile: is required",
        "herdsman:extensions: is not a list of kinds",
        "herdsman:options.initimage: is not a property of it",
        "herdsman:typo: is not known to this version",
        "InferenceService `dot-ted`: metadata.name: needs the Service `dot-ted`",
    ):
        assert words in said, words
    assert "Traceback" not in said


def test_policies_are_kept(attached: Project, client: KubeClient, namespace: str) -> None:
    attached.write("all.yaml", model(), service("chat"))
    attached.configure(manifests="all.yaml", namespace=namespace, policies="policies")
    assert "herdsman:policies" in attached.stack.fails(attached.program)
    (attached.root / "policies").mkdir()
    rule = {"name": "few", "cel": "service.spec.replicas <= 1", "message": "at most one replica"}
    policy = {"apiVersion": "herdsman.dev/v1alpha1", "kind": "Policy", "metadata": {"name": "small"}}
    (attached.root / "policies" / "own.yaml").write_text(yaml.safe_dump({**policy, "spec": {"rules": [rule]}}))
    attached.write("all.yaml", model(), service("chat", replicas=2))
    said = attached.stack.fails(attached.program)
    assert "InferenceService `chat`: policy `small`" in said
    assert names(client, namespace) == set()


def test_an_attached_provider_refuses_another_cluster_and_says_what_to_do(attached: Project, kubeconfig: Path) -> None:
    attached.write("all.yaml", model(), service("chat"))
    attached.configure(clusters={"eu": {"kubeconfig": str(kubeconfig), "manifests": "all.yaml"}})
    assert "herdsman provider path" in attached.stack.fails(attached.program)


def test_provider_serve_prints_what_pulumi_needs(
    tmp_path: Path, kubeconfig: Path, pulumi_command: auto.PulumiCommand, client: KubeClient, namespace: str
) -> None:
    command = [sys.executable, "-m", "automation.cli", "provider", "serve", "--kubeconfig", str(kubeconfig)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as serving:
        assert serving.stdout is not None
        name, _, value = serving.stdout.readline().strip().partition("=")
        assert name == "PULUMI_DEBUG_PROVIDERS" and value.startswith("kubernetes:") and "herdsman:" in value
        project = Project(tmp_path / "project", Stack(tmp_path / "stack", pulumi_command, {name: value}))
        project.write("all.yaml", model(), service("chat"))
        project.configure(manifests="all.yaml", namespace=namespace)
        project.stack.up(project.program)
        assert names(client, namespace) == {"chat"}
        project.stack.destroy()
        serving.terminate()
        assert serving.wait(60) == 0
