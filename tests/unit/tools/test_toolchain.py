"""Where programs are found: override, PATH, cache, in this order."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from tools.toolchain import Located, NotBuilt, ToolMissing, cache_dir, cached_path, find, locate, tool_named
from tools.versions import TOOLS


@pytest.fixture(autouse=True)
def empty_machine(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in TOOLS:
        monkeypatch.delenv("HERDSMAN_" + name.upper().replace("-", "_"), raising=False)
    monkeypatch.setenv("HERDSMAN_CACHE", str(tmp_path / "cache"))
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    monkeypatch.setenv("PATH", str(tmp_path / "path"))


def program(path: Path, says: str = "", *, code: int = 0) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(f"#!/bin/sh\necho '{says}'\nexit {code}\n")
    path.chmod(0o755)
    return path


def test_a_program_that_is_nowhere_is_told_with_how_to_get_it() -> None:
    with pytest.raises(ToolMissing) as caught:
        locate("kube-apiserver")
    assert str(caught.value) == (
        f"`kube-apiserver` {TOOLS['kube-apiserver'].version} is not on this machine: "
        "run `make setup`, or `herdsman tools install kube-apiserver`"
    )


def test_the_cache_holds_programs_by_name_and_version(tmp_path: Path) -> None:
    made = program(cached_path(TOOLS["etcd"]))
    assert made == tmp_path / "cache" / "tools" / f"etcd-{TOOLS['etcd'].version}" / "bin" / "etcd"
    assert locate("etcd") == made


def test_the_cache_follows_the_xdg_variable_and_the_home_folder(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("HERDSMAN_CACHE")
    monkeypatch.delenv("XDG_CACHE_HOME", raising=False)
    assert cache_dir() == tmp_path / "home" / ".cache" / "herdsman"
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "xdg"))
    assert cache_dir() == tmp_path / "xdg" / "herdsman"


def test_an_override_comes_before_everything_else(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    program(cached_path(TOOLS["llama-server"]))
    program(tmp_path / "path" / "llama-server")
    own = program(tmp_path / "own")
    monkeypatch.setenv("HERDSMAN_LLAMA_SERVER", str(own))
    assert find(TOOLS["llama-server"]).found_by == "override"
    assert locate("llama-server") == own


def test_an_override_that_points_to_nothing_is_an_error_and_not_a_reason_to_build(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    program(cached_path(TOOLS["etcd"]))
    monkeypatch.setenv("HERDSMAN_ETCD", str(tmp_path / "typo"))
    with pytest.raises(ToolMissing, match="HERDSMAN_ETCD names this path") as caught:
        locate("etcd")
    assert not isinstance(caught.value, NotBuilt)


def test_a_recent_copy_of_the_users_own_comes_before_the_cache(tmp_path: Path) -> None:
    program(cached_path(TOOLS["pulumi"]))
    own = program(tmp_path / "path" / "pulumi", "v3.260.1")
    assert locate("pulumi") == own


@pytest.mark.parametrize(("says", "code"), [("v3.99.0", 0), ("no idea", 0), ("v3.260.1", 1)])
def test_an_old_or_broken_copy_of_the_users_own_is_passed_over(tmp_path: Path, says: str, code: int) -> None:
    cached = program(cached_path(TOOLS["pulumi"]))
    program(tmp_path / "path" / "pulumi", says, code=code)
    assert locate("pulumi") == cached


def test_a_copy_that_is_there_and_is_not_taken_is_named(tmp_path: Path) -> None:
    own = program(tmp_path / "path" / "pulumi", code=1)
    with pytest.raises(NotBuilt) as caught:
        locate("pulumi")
    assert f"is not on this machine, and {own} is older or did not print its version within 60 s: run" in str(
        caught.value
    )


def test_an_upgrade_of_the_users_copy_is_seen_at_once(tmp_path: Path) -> None:
    cached = program(cached_path(TOOLS["pulumi"]))
    own = program(tmp_path / "path" / "pulumi", "v3.99.0")
    assert locate("pulumi") == cached
    program(own, "v3.260.1")
    assert locate("pulumi") == own


def test_pulumi_is_found_where_its_own_installer_puts_it(tmp_path: Path) -> None:
    own = program(tmp_path / "home" / ".pulumi" / "bin" / "pulumi", "v3.250.0")
    assert locate("pulumi") == own


@pytest.mark.parametrize("name", ["kube-apiserver", "kube-controller-manager", "kube-scheduler"])
def test_a_server_of_kubernetes_on_path_is_used_only_in_exactly_the_pinned_version(tmp_path: Path, name: str) -> None:
    own = program(tmp_path / "path" / name, "Kubernetes v1.99.0")
    with pytest.raises(NotBuilt) as caught:
        locate(name)
    assert f"{own} has another version or did not print its version" in str(caught.value)
    program(own, f"Kubernetes v{TOOLS[name].version}")
    assert find(TOOLS[name]) == Located(own, "PATH")


def test_a_program_of_an_earlier_recipe_is_used_until_the_present_one_is_built(tmp_path: Path) -> None:
    tool = replace(TOOLS["kwok"], revision=3)
    assert cached_path(tool).parent.parent.name == f"kwok-{tool.version}-r3"
    first = program(tmp_path / "cache" / "tools" / f"kwok-{tool.version}" / "bin" / "kwok")
    assert find(tool).path == first
    second = program(tmp_path / "cache" / "tools" / f"kwok-{tool.version}-r2" / "bin" / "kwok")
    assert find(tool).path == second
    program(cached_path(tool))
    assert find(tool).path == cached_path(tool)


def test_an_unknown_name_is_told_with_the_known_ones() -> None:
    with pytest.raises(ToolMissing, match="one of pulumi, etcd"):
        tool_named("kubeapiserver")
