"""The parts of a real node that need no node: addresses, configuration, control groups, and missing requirements."""

from __future__ import annotations

import ipaddress
import itertools
import json
from pathlib import Path

import pytest

from tools.localcluster.certificates import SERVICE_NETWORK
from tools.localcluster.layout import ProcessRecord
from tools.node import cgroups, configuration, requirements
from tools.node.layout import MAX_NODES, Network, NodeLayout, NodePlan, node_layout

PLAN = NodePlan(
    name="node",
    index=3,
    api_port=21000,
    service_network=SERVICE_NETWORK,
    kubelet="/opt/kubelet",
    kube_proxy="/opt/kube-proxy",
    cni_plugins="/usr/lib/cni",
    snapshotter="overlayfs",
)


@pytest.fixture
def layout(tmp_path: Path) -> NodeLayout:
    found = node_layout(tmp_path)
    found.directory.mkdir()
    return found


def test_no_two_nodes_share_an_address() -> None:
    taken = [ipaddress.ip_network(SERVICE_NETWORK)]
    for index in range(MAX_NODES):
        network = Network(index)
        link = ipaddress.ip_network(network.link)
        assert {ipaddress.ip_address(network.gateway), ipaddress.ip_address(network.address)} == set(link.hosts())
        taken += [link, ipaddress.ip_network(network.pods)]
        assert len(network.device) < 16, "the kernel takes no longer name"
    ordered = sorted(taken)
    assert not any(one.overlaps(other) for one, other in itertools.pairwise(ordered))


def test_plan_and_record_are_read_as_they_were_written(layout: NodeLayout) -> None:
    assert layout.read_record() is None
    layout.write_plan(PLAN)
    layout.write_record(ProcessRecord(7, 12.5))
    assert layout.read_plan() == PLAN and layout.read_record() == ProcessRecord(7, 12.5)
    layout.write_record(None)
    assert layout.read_record() is None


def test_every_file_that_a_program_is_told_of_is_written(layout: NodeLayout) -> None:
    files = configuration.files(PLAN, layout, client_authority=Path("/pki/ca.crt"))
    kubeconfigs = {"kubelet.kubeconfig", "kube-proxy.kubeconfig"}  # made with the cluster's authority
    for command in configuration.commands(PLAN, layout).values():
        for word in command:
            path = word.rpartition("=")[2]
            if path.startswith(str(layout.configuration)):
                assert str(Path(path).relative_to(layout.configuration)) in {*files, *kubeconfigs}
    kubelet = json.loads(files["kubelet.json"])
    assert kubelet["cgroupRoot"] == "/herdsman-node-3" and kubelet["authentication"]["anonymous"] == {"enabled": False}
    network = json.loads(files["cni/10-herdsman.conflist"])
    assert network["plugins"][0]["ipam"]["ranges"] == [[{"subnet": PLAN.network.pods}]]


def test_the_runtime_is_told_of_image_plugins_and_snapshotter(layout: NodeLayout) -> None:
    import tomllib

    files = configuration.files(PLAN, layout, client_authority=Path("/pki/ca.crt"))
    runtime = tomllib.loads(files["containerd.toml"])["plugins"]["io.containerd.grpc.v1.cri"]
    assert runtime["sandbox_image"] == configuration.PAUSE_IMAGE
    assert runtime["cni"] == {"bin_dir": "/usr/lib/cni", "conf_dir": str(layout.configuration / "cni")}
    assert runtime["containerd"]["snapshotter"] == "overlayfs"


def version_1(root: Path) -> None:
    for name in cgroups.CONTROLLERS:
        folder = root / name
        folder.mkdir(parents=True)
    (root / "cpuset" / "cpuset.cpus").write_text("0-1\n")
    (root / "cpuset" / "cpuset.mems").write_text("0\n")


def test_groups_are_made_in_every_hierarchy_and_removed_with_what_is_below(tmp_path: Path) -> None:
    version_1(tmp_path)
    assert cgroups.missing(tmp_path) == []
    cgroups.make("ours", tmp_path)
    assert all((tmp_path / name / "ours").is_dir() for name in cgroups.CONTROLLERS)
    (tmp_path / "memory" / "ours" / "kubepods" / "pod1").mkdir(parents=True)
    assert cgroups.remove("ours", tmp_path)
    assert not any((tmp_path / name / "ours").exists() for name in cgroups.CONTROLLERS)
    assert (tmp_path / "memory").is_dir()


def test_a_new_group_may_use_the_processors_of_its_parent(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    version_1(tmp_path)
    group = tmp_path / "cpuset" / "ours"
    group.mkdir()
    for file in ("cpuset.cpus", "cpuset.mems"):
        (group / file).write_text("\n")  # the kernel creates them empty
    cgroups.make("ours", tmp_path)
    assert (group / "cpuset.cpus").read_text() == "0-1\n" and (group / "cpuset.mems").read_text() == "0\n"


def test_version_2_hands_its_controllers_down(tmp_path: Path) -> None:
    (tmp_path / "cgroup.controllers").write_text("cpuset cpu io memory pids\n")
    assert cgroups.missing(tmp_path) == []
    cgroups.make("ours", tmp_path)
    assert (tmp_path / "ours").is_dir()
    assert set((tmp_path / "cgroup.subtree_control").read_text().split()) == {"+cpu", "+cpuset", "+memory", "+pids"}
    assert cgroups.remove("ours", tmp_path) and not (tmp_path / "ours").exists()


def test_a_missing_controller_is_named(tmp_path: Path) -> None:
    (tmp_path / "cpu").mkdir()
    assert cgroups.missing(tmp_path) == ["cpuacct", "cpuset", "memory", "pids"]
    (tmp_path / "cgroup.controllers").write_text("cpu memory\n")
    assert cgroups.missing(tmp_path) == ["cpuset", "pids"]


def test_who_is_not_root_hears_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("sys.platform", "linux")
    monkeypatch.setattr("os.geteuid", lambda: 1000)
    assert "needs root" in (requirements.missing(tmp_path) or "")


def test_missing_programs_are_named_with_their_packages(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("sys.platform", "linux")
    monkeypatch.setattr("os.geteuid", lambda: 0)
    monkeypatch.setenv("PATH", str(tmp_path))
    said = requirements.missing(tmp_path) or ""
    assert "runc" in said and "apt-get install busybox-static containerd curl" in said
