"""The contract of the harness that plays the engine: each scenario runs on the harness and on the real Pulumi CLI.

Both use the real provider and a real API server, each in a namespace of its own. After each run the operations, their
detailed differences, the outputs and the state have to be equal, and so do all requests that the provider got.
docs/adr/0054.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pulumi
import pulumi.automation as auto
import pulumi_kubernetes as k8s
import pytest

from components.providers.plugin_server import EmbeddedPlugins
from kubeapi.client import KubeClient
from kubeapi.kinds import CONFIG_MAPS
from tests.contract.engine_worlds import Recording, World
from tests.engine.stacks import Program, Stack
from tests.support.controlplane import Api, eventually
from tests.support.wire.stack import WireStack

pytestmark = pytest.mark.soak

ROOT_CA = "kube-root-ca.crt"


@pytest.fixture
def worlds(tmp_path: Path, pulumi_cli: Path, kubeconfig: Path, api: Api) -> Iterator[tuple[World, World]]:
    """The harness and the real CLI."""
    command = auto.PulumiCommand(root=str(pulumi_cli.parent.parent), skip_version_check=True)
    client = KubeClient.from_kubeconfig(str(kubeconfig))
    made = []
    with ExitStack() as closing:
        for side in ("wire", "cli"):
            provider = Recording(client)
            plugins = closing.enter_context(EmbeddedPlugins({"kubernetes": provider}))
            namespace = closing.enter_context(api.namespace(kept=True))
            # A controller creates it a moment later, and two scenarios read it.
            eventually(lambda where=namespace: client.find(CONFIG_MAPS, where, ROOT_CA), what=ROOT_CA)  # type: ignore[misc]
            environment = plugins.environment()
            stack = WireStack(environment) if side == "wire" else Stack(tmp_path / "stack", command, environment)
            made.append(World(stack, namespace, client, provider.calls))
        yield made[0], made[1]
    client.close()


Scenario = Callable[[World], None]
SCENARIOS: list[Scenario] = []


def scenario(play: Scenario) -> Scenario:
    SCENARIOS.append(play)
    return play


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    metafunc.parametrize("play", [pytest.param(each, id=each.__name__) for each in SCENARIOS])


def test_the_harness_does_as_the_real_engine(worlds: tuple[World, World], play: Scenario) -> None:
    wire, cli = worlds
    for world in worlds:
        play(world)
    assert len(wire.seen) == len(cli.seen)
    for number, (played, real) in enumerate(zip(wire.seen, cli.seen, strict=True)):
        for part in real:
            assert played[part] == real[part], f"run {number}, {real['what']}: {part}"


# --- The scenarios ----------------------------------------------------------------------------------------------------


def config_map(
    namespace: str, data: Any, *, name: str = "settings", of: str = "", options: Any = None, **fields: Any
) -> k8s.core.v1.ConfigMap:
    metadata = {"name": of or name, "namespace": namespace}
    return k8s.core.v1.ConfigMap(name, metadata=metadata, data=data, opts=options, **fields)


def service(namespace: str) -> k8s.core.v1.Service:
    return k8s.core.v1.Service("svc", metadata={"name": "svc", "namespace": namespace}, spec={"ports": [{"port": 80}]})


@scenario
def a_chain_is_previewed_created_changed_and_destroyed(world: World) -> None:
    world.is_chain = True

    def program(value: str, *, last: bool = True) -> Program:
        def run() -> None:
            first = service(world.namespace)
            data = {"address": first.spec.cluster_ip, "uid": first.metadata.uid, "fixed": value}
            second = config_map(world.namespace, data)
            if last:
                after = pulumi.ResourceOptions(depends_on=[first])
                config_map(world.namespace, {"of": second.metadata.name}, name="last", options=after)
            pulumi.export("name", second.metadata.name)

        return run

    world.preview(program("1"))
    world.up(program("1"))
    world.up(program("1"))
    world.preview(program("2"))
    world.up(program("2"))
    world.preview(program("2", last=False))
    world.up(program("2", last=False))
    world.up(program("2"))
    world.destroy()


def deployment(namespace: str, selector: str) -> k8s.apps.v1.Deployment:
    labels = {"app": selector}
    pods = {"metadata": {"labels": labels}, "spec": {"containers": [{"name": "web", "image": "nginx:1"}]}}
    spec = {"selector": {"matchLabels": labels}, "template": pods}
    return k8s.apps.v1.Deployment("web", metadata={"name": "web", "namespace": namespace}, spec=spec)


@scenario
def a_replacement_deletes_first_and_takes_its_dependents_along(world: World) -> None:
    def program(selector: str) -> Program:
        def run() -> None:
            web = deployment(world.namespace, selector)
            config_map(world.namespace, {"uid": web.metadata.uid}, name="updated")
            named = {"name": web.metadata.uid, "namespace": world.namespace}
            moved = k8s.core.v1.ConfigMap("moved", metadata=named, data={"a": "1"})
            config_map(world.namespace, {"of": moved.metadata.name}, name="beyond")

        return run

    world.up(program("a"))
    world.preview(program("b"))
    world.up(program("b"))
    world.up(program("b"))


@scenario
def a_replacement_with_another_name_creates_first(world: World) -> None:
    def program(name: str, **options: Any) -> Program:
        def run() -> None:
            made = config_map(world.namespace, {"a": "1"}, of=name, options=pulumi.ResourceOptions(**options))
            config_map(world.namespace, {"of": made.metadata.name}, name="dependent")

        return run

    world.up(program("one"))
    world.preview(program("two"))
    world.up(program("two"))
    world.up(program("three", delete_before_replace=True))
    world.up(lambda: None)


@scenario
def an_object_is_imported_read_and_refreshed(world: World) -> None:
    theirs = {
        "apiVersion": "v1",
        "kind": "ConfigMap",
        "metadata": {"name": "settings", "namespace": world.namespace},
        "data": {"a": "1", "b": "1"},
    }
    world.client.create(CONFIG_MAPS, world.namespace, theirs, field_manager="kubectl-create")

    def program(a: str, **options: Any) -> Program:
        def run() -> None:
            config_map(world.namespace, {"a": a, "b": "1"}, options=pulumi.ResourceOptions(**options))
            read = k8s.core.v1.ConfigMap.get("root", f"{world.namespace}/{ROOT_CA}")
            config_map(world.namespace, {"of": read.metadata.name}, name="beside")

        return run

    missing = pulumi.ResourceOptions(import_=f"{world.namespace}/nothing")
    world.fails(lambda: world.stack.up(lambda: config_map(world.namespace, {}, options=missing) and None), "not exist")
    world.preview(program("2", import_=f"{world.namespace}/settings"))
    world.up(program("2", import_=f"{world.namespace}/settings"))
    world.up(program("2", import_=f"{world.namespace}/settings"))
    world.up(program("3"))
    world.refresh(expect_no_changes=True)
    world.patch({"data": {"a": "theirs"}})
    world.client.delete(CONFIG_MAPS, world.namespace, "beside")
    world.fails(lambda: world.stack.refresh(expect_no_changes=True), "no changes were expected")
    world.up(program("3"))
    world.patch({"data": {"a": "theirs"}})
    world.up(program("3"))
    world.patch({"data": {"a": "theirs"}})
    world.up(program("3"), refresh=True)
    world.destroy()
    assert "settings" not in {
        item["metadata"]["name"] for item in world.client.list(CONFIG_MAPS, world.namespace)["items"]
    }


@scenario
def options_of_resources_are_kept(world: World) -> None:
    def program(a: str, name: str = "settings", **options: Any) -> Program:
        def run() -> None:
            kept = pulumi.ResourceOptions(retain_on_delete=True)
            retained = config_map(world.namespace, {}, name="retained", options=kept)
            # So the protected one is to be deleted first. Otherwise it depends on the moment which others are.
            asked = pulumi.ResourceOptions(depends_on=[retained], **options)
            made = config_map(world.namespace, {"a": a, "b": a}, name=name, of="settings", options=asked)
            config_map(world.namespace, {}, name="gone", options=pulumi.ResourceOptions(deleted_with=made))

        return run

    world.up(program("1", ignore_changes=["data.a"]))
    world.patch({"data": {"a": "theirs"}})
    world.up(program("1", ignore_changes=["data.a"]))
    world.up(program("2", ignore_changes=["data.a", "data.absent", "metadata.labels"]))
    world.up(program("3", "renamed", aliases=[pulumi.Alias(name="settings")]))
    world.up(program("3", "renamed", protect=True))
    world.fails(lambda: world.stack.destroy(), "protect")
    world.up(program("3", "renamed"))
    world.destroy()
    assert world.config_maps() == {"retained", "gone", ROOT_CA}


@scenario
def a_failed_run_keeps_what_it_made_and_the_next_goes_on(world: World) -> None:
    def program(*names: str, data: Any = None) -> Program:
        def run() -> None:
            for name in names:
                config_map(world.namespace, data or {"a": "1"}, name=name.lower(), of=name)

        return run

    world.fails(lambda: world.stack.up(program("good", "Bad"), continue_on_error=True), "metadata.name")
    world.up(program("good"))
    world.fails(lambda: world.stack.up(program("good", data={"a b": "1"})), "data")
    world.fails(lambda: world.stack.preview(program("Bad")), "metadata.name")

    def contradicting() -> None:
        inputs = {"kind": "Secret", "metadata": {"name": "good", "namespace": world.namespace}}
        pulumi.CustomResource("kubernetes:core/v1:ConfigMap", "good", inputs)

    world.fails(lambda: world.stack.up(contradicting), "contradicts the type")

    def broken() -> None:
        raise ValueError("the program itself")

    world.fails(lambda: world.stack.up(broken), "the program itself")
    world.up(program("good"))


@scenario
def a_replacement_that_fails_half_way_is_completed_by_the_next_run(world: World) -> None:
    def program(data: str) -> Program:
        short = pulumi.ResourceOptions(custom_timeouts=pulumi.CustomTimeouts(create="1s"))
        return lambda: config_map(world.namespace, {"a": data}, immutable=True, options=short) and None

    world.up(program("1"))
    world.patch({"metadata": {"finalizers": ["example.com/hold"]}})
    world.fails(lambda: world.stack.up(program("2")), "example.com/hold")
    world.patch({"metadata": {"finalizers": None}})
    world.up(program("2"))
    assert world.config_map()["data"] == {"a": "2"}
    world.up(program("2"))


@scenario
def secrets_stay_marked(world: World) -> None:
    def program(text: str) -> Program:
        def run() -> None:
            made = k8s.core.v1.Secret(
                "key", metadata={"name": "key", "namespace": world.namespace}, string_data={"password": text}
            )
            copied = made.data.apply(lambda data: data["password"])
            config_map(world.namespace, {"copy": copied, "marked": pulumi.Output.secret(text), "open": "seen"})
            pulumi.export("data", made.data)

        return run

    world.preview(program("one"))
    world.up(program("one"))
    world.up(program("one"))
    world.preview(program("two"))
    world.up(program("two"))
    world.refresh()
    world.destroy()


@scenario
def explicit_providers_are_configured_and_checked(world: World) -> None:
    def program(**config: Any) -> Program:
        def run() -> None:
            mine = k8s.Provider("mine", **config)
            config_map(world.namespace, {"a": "1"}, options=pulumi.ResourceOptions(provider=mine))

        return run

    refused = "the one cluster that Herdsman is connected to"
    world.fails(lambda: world.stack.up(program(kubeconfig="/some/where")), refused)
    world.up(program(enable_server_side_apply=True))
    world.up(program(enable_server_side_apply=True))
    world.destroy()
