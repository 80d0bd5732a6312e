"""How Herdsman calls kind. A script that keeps a list of clusters replaces kind, and Docker is not needed."""

from __future__ import annotations

import stat
from pathlib import Path

import pytest

from tools.kindcluster import KindCluster
from tools.localcluster import ClusterError, default_directory

KIND = """#!/bin/sh
list="$0.clusters"
touch "$list"
echo "$*" >> "$0.calls"
case "$1 $2" in
"get clusters") [ -s "$list" ] && cat "$list" || echo "No kind clusters found." >&2 ;;
"get kubeconfig") echo "fetched again" ;;
"create cluster") [ -e "$0.broken" ] && { echo "ERROR: no memory left" >&2; exit 1; }
    echo "$4" >> "$list"; echo "made by kind" > "$6" ;;
"load image-archive") echo "$3" >> "$0.loaded" ;;
"delete cluster") grep -v "^$4$" "$list" > "$list.new"; mv "$list.new" "$list" ;;
*) exit 2 ;;
esac
"""


@pytest.fixture
def kind(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    program = tmp_path / "kind"
    program.write_text(KIND)
    program.chmod(0o755)
    monkeypatch.setenv("HERDSMAN_KIND", str(program))
    return program


def test_up_creates_a_cluster_once_and_down_deletes_it(tmp_path: Path, kind: Path) -> None:
    cluster = KindCluster(tmp_path / "here")
    assert not cluster.exists_here
    assert cluster.up()
    assert (cluster.exists_here, cluster.runs()) == (True, True)
    assert cluster.kubeconfig.read_text() == "made by kind\n"
    assert not cluster.up()
    assert kind.with_name("kind.calls").read_text().count("create cluster") == 1
    assert cluster.down()
    assert (cluster.exists_here, cluster.runs(), cluster.kubeconfig.exists()) == (False, False, False)
    assert not cluster.down()


def test_a_new_cluster_takes_the_configuration_and_one_that_is_there_stays(tmp_path: Path, kind: Path) -> None:
    cluster = KindCluster(tmp_path / "here")
    assert cluster.up(tmp_path / "kind.yaml")
    assert f"--config {tmp_path}/kind.yaml" in kind.with_name("kind.calls").read_text()
    assert not cluster.up(tmp_path / "other.yaml")
    assert "other.yaml" not in kind.with_name("kind.calls").read_text()


def test_an_archive_of_images_goes_to_the_cluster_of_the_directory(tmp_path: Path, kind: Path) -> None:
    cluster = KindCluster(tmp_path / "here")
    cluster.up()
    cluster.load(tmp_path / "image.tar")
    assert kind.with_name("kind.loaded").read_text() == f"{tmp_path}/image.tar\n"
    assert kind.with_name("kind.calls").read_text().splitlines()[-1].endswith(f"--name {cluster.name}")


def test_a_lost_kubeconfig_is_fetched_again_for_its_owner_only(tmp_path: Path, kind: Path) -> None:
    cluster = KindCluster(tmp_path / "here")
    cluster.up()
    cluster.kubeconfig.unlink()
    assert not cluster.up()
    assert cluster.kubeconfig.read_text() == "fetched again\n"
    assert stat.S_IMODE(cluster.kubeconfig.stat().st_mode) == 0o600


def test_each_directory_has_a_cluster_of_its_own(tmp_path: Path, kind: Path) -> None:
    assert KindCluster(default_directory()).name == "herdsman"
    one, two = KindCluster(tmp_path / "one"), KindCluster(tmp_path / "two")
    assert one.name != two.name
    one.up()
    two.up()
    one.down()
    assert two.runs()


def test_what_kind_says_when_it_fails_is_passed_on(tmp_path: Path, kind: Path) -> None:
    kind.with_name("kind.broken").touch()
    with pytest.raises(ClusterError, match="`kind create cluster` failed: ERROR: no memory left"):
        KindCluster(tmp_path / "here").up()
