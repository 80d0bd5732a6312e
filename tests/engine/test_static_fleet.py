"""Static fleets: services in files, created on the real API server without a loop."""

from __future__ import annotations

import asyncio
import gc
import os
import shutil
import subprocess
import sys
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import pulumi.automation as auto
import pytest
import yaml

from components import naming
from components.providers.plugin_server import EmbeddedPlugins
from kubeapi import kinds
from kubeapi.client import KubeClient
from kubeapi.errors import NotFound
from program.__main__ import register_fleet
from program.static.plugin import KubernetesPlugin
from tests.engine.stacks import PASSPHRASE, AnyStack, Stack
from tests.support import needs
from tests.support.loop import owner_reference
from tests.support.wire.stack import WireStack

ROOT = Path(__file__).resolve().parents[2]
MODEL = {
    "apiVersion": "inference.llmkube.dev/v1alpha1",
    "kind": "Model",
    "metadata": {"name": "base"},
    "spec": {"source": "https://example.com/base.gguf"},
}


def service(name: str, **spec: Any) -> dict[str, Any]:
    return {
        "apiVersion": "inference.llmkube.dev/v1alpha1",
        "kind": "InferenceService",
        "metadata": {"name": name},
        "spec": {"modelRef": "base", **spec},
    }


class Fleet:
    """A project folder with manifests, and the stack that is made from it."""

    def __init__(self, root: Path, stack: AnyStack, namespace: str) -> None:
        self.root = root
        self.stack = stack
        config = {
            "herdsman:manifests[0]": auto.ConfigValue("models.yaml"),
            "herdsman:manifests[1]": auto.ConfigValue("services/*.yaml"),
            "herdsman:namespace": auto.ConfigValue(namespace),
        }
        stack.select(self.program).set_all_config(config, path=True)
        (root / "services").mkdir(parents=True)
        (root / "models.yaml").write_text(yaml.safe_dump(MODEL))

    def program(self) -> Awaitable[None]:
        return register_fleet(self.root)

    def write(self, document: dict[str, Any]) -> None:
        self.path(document["metadata"]["name"]).write_text(yaml.safe_dump(document))

    def wants(self, plugin: KubernetesPlugin) -> None:
        """Set the fleet's plugin in the config."""
        self.stack.select(self.program).set_config("herdsman:kubernetesPlugin", auto.ConfigValue(plugin.value))

    def path(self, name: str) -> Path:
        return self.root / "services" / f"{name}.yaml"


@pytest.fixture
def fleet(tmp_path: Path, stack: WireStack, namespace: str) -> Fleet:
    return Fleet(tmp_path / "project", stack, namespace)


def names(client: KubeClient, namespace: str, kind: kinds.Kind = kinds.DEPLOYMENTS) -> set[str]:
    return {item["metadata"]["name"] for item in client.list(kind, namespace)["items"]}


def test_a_fleet_is_made_changed_and_destroyed(
    tmp_path: Path, user_stack: Stack, client: KubeClient, namespace: str
) -> None:
    fleet = Fleet(tmp_path / "project", user_stack, namespace)
    fleet.write(service("chat", replicas=2))
    fleet.write(service("code", autoscaling={"maxReplicas": 3}))
    run = fleet.stack.up(fleet.program)
    assert set(run.steps().values()) == {"create"}
    assert names(client, namespace) == {"chat", "code"}
    assert names(client, namespace, kinds.SERVICES) == {"chat", "code"}
    assert names(client, namespace, kinds.AUTOSCALERS) == {"code"}
    assert names(client, namespace, kinds.CLAIMS) == {naming.CACHE_CLAIM}
    made = client.get(kinds.DEPLOYMENTS, namespace, "chat")
    assert made["spec"]["replicas"] == 2
    assert "ownerReferences" not in made["metadata"]

    assert set(fleet.stack.preview(fleet.program).steps().values()) == {"same"}

    fleet.write(service("chat", replicas=2, contextSize=4096))
    planned = fleet.stack.preview(fleet.program)
    assert planned.steps("update").keys() == {"llmkube/chat/deployment"}
    fleet.stack.up(fleet.program)
    changed = client.get(kinds.DEPLOYMENTS, namespace, "chat")
    args = changed["spec"]["template"]["spec"]["containers"][0]["args"]
    assert args[args.index("--ctx-size") + 1] == "4096"
    assert changed["metadata"]["uid"] == made["metadata"]["uid"]

    fleet.path("code").unlink()
    run = fleet.stack.up(fleet.program)
    assert run.steps("delete").keys() == {f"llmkube/code/{part}" for part in ("deployment", "hpa", "service")}
    assert names(client, namespace) == names(client, namespace, kinds.SERVICES) == {"chat"}

    fleet.stack.destroy()
    for kind in (kinds.DEPLOYMENTS, kinds.SERVICES, kinds.AUTOSCALERS):
        assert names(client, namespace, kind) == set()
    assert client.get(kinds.CLAIMS, namespace, naming.CACHE_CLAIM)["metadata"].get("deletionTimestamp") is None


def test_wrong_manifests_are_all_named_and_nothing_is_made(fleet: Fleet, client: KubeClient, namespace: str) -> None:
    fleet.write(service("right"))
    fleet.write(service("wrong", replicas="many"))
    elsewhere = service("elsewhere")
    elsewhere["metadata"]["namespace"] = "other"
    fleet.write(elsewhere)
    (fleet.root / "models.yaml").write_text(
        yaml.safe_dump_all(
            [
                MODEL,
                {**MODEL, "metadata": {"name": "mac"}, "spec": {**MODEL["spec"], "hardware": {"accelerator": "metal"}}},
            ]
        )
    )
    fleet.write(service("hosted", modelRef="mac"))
    said = fleet.stack.fails(fleet.program)
    assert "services/wrong.yaml: InferenceService `wrong`: spec.replicas: `many` is not a whole number" in said
    assert "InferenceService `elsewhere`: spec.modelRef: the files have no Model `base` of namespace `other`" in said
    assert "services/hosted.yaml: InferenceService `hosted`: metadata.annotations[herdsman.dev/host]:" in said
    assert "Traceback" not in said
    with pytest.raises(NotFound):
        client.get(kinds.DEPLOYMENTS, namespace, "right")


def test_a_wrong_edit_changes_nothing_that_stands(fleet: Fleet, client: KubeClient, namespace: str) -> None:
    fleet.write(service("chat"))
    fleet.stack.up(fleet.program)
    fleet.path("chat").write_text("kind: [")
    assert "services/chat.yaml line 1: is not YAML" in fleet.stack.fails(fleet.program)
    assert names(client, namespace) == {"chat"}


def test_a_fleet_takes_the_examples_of_all_dialects(fleet: Fleet, client: KubeClient, namespace: str) -> None:
    fleet.write(service("talk"))
    for name in ("10-llmaz-playground", "13-kserve-single-node"):
        shutil.copytree(ROOT / "examples" / name, fleet.root / name)
    fleet.stack.select(fleet.program).set_config("herdsman:manifests[2]", auto.ConfigValue("1*/*.yaml"), path=True)
    run = fleet.stack.up(fleet.program)
    assert names(client, namespace) == {"talk", "chat", "small-kserve"}
    assert client.get(kinds.AUTOSCALERS, namespace, "chat")["spec"]["scaleTargetRef"]["kind"] == "Deployment"
    assert "create Secret `small-kserve-self-signed-certs` of type kubernetes.io/tls yourself" in run.text
    assert set(fleet.stack.preview(fleet.program).steps().values()) == {"same"}
    fleet.stack.destroy()
    assert names(client, namespace) == set()


def test_a_field_without_effect_is_a_warning_of_the_run(fleet: Fleet) -> None:
    fleet.write(service("chat", typo=1))
    run = fleet.stack.preview(fleet.program)
    assert "services/chat.yaml: InferenceService `chat`: spec.typo" in run.text


def test_a_service_that_a_loop_looks_after_is_refused_with_the_way_to_move_it(
    fleet: Fleet, client: KubeClient, namespace: str
) -> None:
    loops = owner_reference(client, namespace, "chat")
    client.apply(
        kinds.SERVICES,
        namespace,
        {
            "apiVersion": "v1",
            "kind": "Service",
            "metadata": {"name": "chat", "namespace": namespace, "ownerReferences": [loops]},
            "spec": {"ports": [{"port": 80}]},
        },
        field_manager=naming.FIELD_MANAGER,
    )
    before = client.get(kinds.SERVICES, namespace, "chat")
    for asked in ({}, {"herdsman.dev/adopt": "true"}):
        document = service("chat")
        document["metadata"]["annotations"] = asked
        fleet.write(document)
        said = " ".join(fleet.stack.fails(fleet.program).split())
        assert f"herdsman fleet take inferenceservice/chat -n {namespace} --into FILE" in said
        assert "take its document out of the fleet's files" in said
    assert client.get(kinds.SERVICES, namespace, "chat") == before


def test_config_that_makes_no_sense_is_said_in_words(fleet: Fleet) -> None:
    selected = fleet.stack.select(fleet.program)
    selected.remove_config("herdsman:manifests")
    for key, value, error in (
        ("manifests", "", "herdsman:manifests: names no file"),
        ("manifests", "[]", "herdsman:manifests: names no file"),
        ("manifests", '["models.yaml", 7]', "herdsman:manifests[1]: is not a path"),
        ("manifests", "none.yaml", "none.yaml: No such file or directory"),
        ("namespace", "Not/One", "herdsman:namespace: `Not/One` is not the name of a namespace"),
    ):
        selected.set_config(f"herdsman:{key}", auto.ConfigValue(value))
        said = fleet.stack.fails(fleet.program)
        assert error in said
        assert "Traceback" not in said


def test_one_path_may_stand_without_a_list(fleet: Fleet, client: KubeClient, namespace: str) -> None:
    (fleet.root / "all.yaml").write_text(yaml.safe_dump_all([MODEL, service("chat")]))
    selected = fleet.stack.select(fleet.program)
    selected.remove_config("herdsman:manifests")
    selected.set_config("herdsman:manifests", auto.ConfigValue("all.yaml"))
    fleet.stack.up(fleet.program)
    assert names(client, namespace) == {"chat"}


# --- Plain `pulumi`, with the project of this repository --------------------------------------------------------------

Pulumi = Callable[..., str]


@pytest.fixture
def plain_pulumi(tmp_path: Path, pulumi_cli: Path, plugins: EmbeddedPlugins) -> Pulumi:
    """Return a function that runs the plain CLI in a copy of the project, which shares the program, the examples and
    the virtual environment.
    """
    path = f"{pulumi_cli.parent}:{os.environ['PATH']}"
    if shutil.which("pulumi-language-python", path=path) is None:
        needs.require("pulumi-language-python")
    project = tmp_path / "project"
    shutil.copytree(ROOT / "stacks", project / "stacks")
    shutil.copy(ROOT / "Pulumi.yaml", project)
    for name in ("program", "examples"):
        (project / name).symlink_to(ROOT / name)
    (project / ".venv").symlink_to(sys.prefix)
    (tmp_path / "state").mkdir()
    environment = {
        **os.environ,
        **plugins.environment(),
        "PATH": path,
        "PULUMI_HOME": str(tmp_path / "home"),
        "PULUMI_BACKEND_URL": f"file://{tmp_path}/state",
        "PULUMI_CONFIG_PASSPHRASE": PASSPHRASE,
        "PULUMI_SKIP_UPDATE_CHECK": "true",
        "PULUMI_DISABLE_AUTOMATIC_PLUGIN_ACQUISITION": "true",
    }

    def run(*arguments: str, fails: bool = False) -> str:
        command = ["pulumi", "--non-interactive", "--color=never", *arguments]
        done = subprocess.run(
            command, cwd=project, env=environment, capture_output=True, text=True, timeout=120, check=False
        )
        assert bool(done.returncode) is fails, done.stdout + done.stderr
        return done.stdout + done.stderr if fails else done.stdout

    return run


def test_plain_pulumi_makes_the_example_stack(plain_pulumi: Pulumi, client: KubeClient, namespace: str) -> None:
    plain_pulumi("stack", "init", "example")
    plain_pulumi("config", "set", "--stack=example", "herdsman:namespace", namespace)
    assert "kubernetes:apps/v1:Deployment" in plain_pulumi("preview", "--stack=example")
    assert names(client, namespace) == set()
    plain_pulumi("up", "--yes", "--stack=example")
    assert names(client, namespace) == {"chat"}
    plain_pulumi("preview", "--stack=example", "--expect-no-changes")
    plain_pulumi("destroy", "--yes", "--stack=example")
    assert names(client, namespace) == set()


def test_a_failed_up_of_plain_pulumi_ends_with_what_is_wrong(plain_pulumi: Pulumi) -> None:
    plain_pulumi("stack", "init", "example")
    plain_pulumi("config", "set", "--stack=example", "herdsman:namespace", "is-not-there")
    said = plain_pulumi("up", "--yes", "--skip-preview", "--stack=example", fails=True)
    assert "Create the namespace first" in said
    assert "Traceback" not in said
    assert "KeyboardInterrupt" not in said


def test_what_earlier_programs_left_unfinished_ends_outside_of_a_run(fleet: Fleet) -> None:
    """The end of an SDK's unfinished coroutine inside of a run would register outputs of another event loop there."""
    ended_in: list[object] = []

    async def unfinished() -> None:
        try:
            await asyncio.Event().wait()
        finally:
            ended_in.append(_running_loop())

    async def starts() -> None:
        # The cycle keeps the coroutine until the collector finds it.
        cycle: list[object] = []
        coroutine = unfinished()
        coroutine.send(None)
        cycle += [cycle, coroutine]

    def program() -> Awaitable[None]:
        async def run() -> None:
            await starts()
            for _ in range(1000):
                [[] for _ in range(100)]  # enough for the collector, if it is on
            await fleet.program()

        return run()

    fleet.write(service("chat"))
    threshold = gc.get_threshold()
    gc.set_threshold(50, 2, 2)
    try:
        fleet.stack.up(program)
    finally:
        gc.set_threshold(*threshold)
    gc.collect()
    assert ended_in == [None]


def _running_loop() -> asyncio.AbstractEventLoop | None:
    try:
        return asyncio.get_running_loop()
    except RuntimeError:
        return None
