"""Fixtures of all layers: the control plane, the programs, the layer markers and the count of skipped tests."""

from __future__ import annotations

import collections
import contextlib
import functools
import gc
import os
import sys
from collections.abc import Callable, Generator, Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest

from kubeapi.discovery import BUILT_IN
from kubeapi.kinds import HOSTS, NODES, OPTIONAL, Kind
from program.dialects.registry import DIALECTS
from tests.support import controlplane, definitions, loop_logs
from tests.support.logging_of_tests import give_logging_to_pytest
from tests.support.marked_files import is_left_out
from tools.localcluster import LocalCluster
from tools.versions import CONTROL_PLANE

LAYERS = ("scale", "node", "conformance", "loop", "examples", "hosts", "apiserver", "engine", "contract", "unit")
"""The layers in the order in which they run. Where several processes share the files of a run, those that take minutes
start first, and the many short ones fill the remaining time. The engine's tests leave their namespaces behind.
"""
_HERE = Path(__file__).resolve().parent
_SHARED: list[LocalCluster] = []
"""The shared control plane, once a test has requested it."""
_FOLLOWED = {
    f"{kind.plural}.{kind.group}"
    for kind in (*OPTIONAL, *(kind for each in DIALECTS.values() for kind in (*each.refers_to, each.kind)))
    if kind not in BUILT_IN.values() and not kind.group.endswith(("llmkube.dev", "herdsman.dev"))
}
"""CRDs of other projects on which the loop's output depends."""

# Tests start hundreds of Python processes: loops, agents, commands. If the environment forbids bytecode files, as in
# many containers, each process compiles all of its modules, which takes as long as importing them.
os.environ.pop("PYTHONDONTWRITEBYTECODE", None)
sys.dont_write_bytecode = False
# The Go programs that tests start live for seconds or minutes, so a larger heap is cheaper than collecting it: the API
# server then takes a fifth less CPU time.
os.environ.setdefault("GOGC", "400")
# Threads of a llama-server wait for each other by spinning. On busy cores an answer of the tiny model then takes up to
# sixty times as long.
os.environ.setdefault("LLAMA_ARG_THREADS", "1")
# Gateways of tests write nothing into the folder of the user, unless a test names another store.
os.environ["HERDSMAN_GATEWAY_STORE"] = "sqlite://:memory:"


def pytest_configure(config: pytest.Config) -> None:
    """Configure logging before any fixture starts a thread that logs, and share out files in the order of LAYERS."""
    give_logging_to_pytest()
    config.pluginmanager.register(loop_logs, "loop-logs")
    if hasattr(config.option, "loadscopereorder"):  # else pytest-xdist is not installed
        config.option.loadscopereorder = False


_WITHOUT_NODE = {"tests/node/test_operator_image.py"}
"""Files of the node layer that start no node. The others take longer than all the rest of `make test-soak`."""


@pytest.hookimpl(optionalhook=True)  # of pytest-xdist
def pytest_xdist_make_scheduler(config: pytest.Config, log: Any) -> Any:
    """Give all files that use the node to one test process, which starts one node for them. Other layers: by file."""
    if config.getvalue("dist") != "loadfile":
        return None
    from xdist.scheduler import LoadFileScheduling  # type: ignore[import-untyped]

    class OneNode(LoadFileScheduling):  # type: ignore[misc]
        def _split_scope(self, nodeid: str) -> str:
            file: str = super()._split_scope(nodeid)
            return "tests/node" if file.startswith("tests/node/") and file not in _WITHOUT_NODE else file

    return OneNode(config, log)


@pytest.fixture(autouse=True)
def _logging_stays_with_pytest() -> Iterator[None]:
    """Undo the logging configuration of a command that a test ran in the test process."""
    yield
    give_logging_to_pytest()


@pytest.fixture(scope="session")
def control_plane() -> Iterator[LocalCluster]:
    """One control plane with all components for the whole run; each test uses a separate namespace."""
    controlplane.sweep()
    with controlplane.running() as cluster:
        _SHARED.append(cluster)
        yield cluster
        _SHARED.clear()


@pytest.fixture(scope="session")
def kubeconfig(control_plane: LocalCluster) -> Path:
    """The administrator's kubeconfig of the shared control plane."""
    return control_plane.kubeconfig


@pytest.fixture(scope="session")
def api(control_plane: LocalCluster) -> controlplane.Api:
    """Plain HTTPS to the shared control plane."""
    return controlplane.Api(control_plane)


@pytest.fixture(scope="module", autouse=True)
def _no_shared_object_stays(request: pytest.FixtureRequest) -> Iterator[None]:
    """Delete the Hosts that a module made, and fail it if it leaves CRDs or nodes: later tests would find them.

    Hosts are cluster-scoped, so no deletion of a namespace removes them.
    """
    hosts, nodes = _shared(HOSTS), _shared(NODES)
    yield
    left = _shared(NODES) - nodes
    for cluster in _SHARED:
        api = controlplane.Api(cluster)
        for name in _shared(HOSTS) - hosts:
            api.delete(HOSTS.path(None, name))
        left |= definitions.await_removals(api) & _FOLLOWED
    assert not left, f"{request.node.nodeid} leaves {', '.join(sorted(left))}"


def _shared(kind: Kind) -> set[str]:
    """Return the names of the objects of a cluster-scoped kind on the shared control plane, if it has started."""
    apis = [controlplane.Api(cluster) for cluster in _SHARED]
    return {each["metadata"]["name"] for api in apis for each in (api.get(kind.path()) or {"items": []})["items"]}


@pytest.fixture
def namespace(api: controlplane.Api) -> Iterator[str]:
    """A namespace for one test, deleted after it."""
    with api.namespace() as name:
        yield name


@pytest.fixture
def fresh_control_plane() -> Iterator[Callable[..., LocalCluster]]:
    """Start control planes for one test alone, for faults: `fresh_control_plane(components=…)`."""
    controlplane.sweep()
    with contextlib.ExitStack() as stack:

        def start(components: Sequence[str] = CONTROL_PLANE) -> LocalCluster:
            return stack.enter_context(controlplane.running(components))

        yield start


@pytest.fixture(scope="session")
def pulumi_cli() -> Path:
    """The Pulumi CLI; the test is skipped with instructions where it is missing."""
    return controlplane.tool_or_skip("pulumi")


@pytest.fixture(scope="session")
def llama_server() -> Path:
    """A real llama-server; the test is skipped with instructions where it is missing."""
    return controlplane.tool_or_skip("llama-server")


def pytest_ignore_collect(collection_path: Path, config: pytest.Config) -> bool | None:
    """Leave out files whose marker `-m "not …"` excludes, before they are imported."""
    if collection_path.suffix != ".py" or not config.option.markexpr:
        return None
    return is_left_out(collection_path.read_text("utf-8"), config.option.markexpr) or None


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Mark each test with its layer, which is its folder, and sort the layers."""
    for item in items:
        if layer := _layer(item.path):
            item.add_marker(layer)
    items.sort(key=lambda item: LAYERS.index(_layer(item.path) or LAYERS[-1]))


@pytest.hookimpl(wrapper=True)
def pytest_collection() -> Generator[None, object, object]:
    """Keep the garbage collector from the tests and modules: a million objects that all stay until the end.

    It would look at all of them again and again, which takes a quarter of the CPU time of the short tests. Afterwards
    it runs more rarely than by default, which saves a twentieth.
    """
    gc.disable()
    try:
        return (yield)
    finally:
        gc.freeze()
        gc.set_threshold(20_000, 20, 20)
        gc.enable()


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    """Print how many tests of each layer were skipped, and why, so that a skipped layer does not look like a passed
    one.
    """
    reasons: dict[str, collections.Counter[str]] = collections.defaultdict(collections.Counter)
    for report in terminalreporter.stats.get("skipped", []):
        layer = _layer(_HERE.parent / report.nodeid.partition("::")[0]) or "other"
        why = report.longrepr[2] if isinstance(report.longrepr, tuple) else str(report.longrepr)
        reasons[layer][why.removeprefix("Skipped: ")] += 1
    for layer, counted in sorted(reasons.items()):
        terminalreporter.write_line(f"skipped in layer {layer}: {counted.total()}")
        for why, count in counted.most_common():
            terminalreporter.write_line(f"  {count}: {why}")


@functools.cache
def _layer(path: Path) -> str | None:
    try:
        first = path.resolve().relative_to(_HERE).parts[0]
    except (ValueError, IndexError):
        return None
    return first if first in LAYERS else None
