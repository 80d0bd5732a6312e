"""The contents of the operator's image: packages of the lock and files of Debian, and that nothing is missing."""

from __future__ import annotations

import ast
import re
from importlib import metadata
from pathlib import Path

import pytest
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

from tests.support.packages import PACKAGES
from tools.image import contents, locked, trim
from tools.image import packages as image_packages

ROOT = Path(__file__).parents[3]
LOCK = (ROOT / "requirements.lock").read_text()
PROJECT = (ROOT / "pyproject.toml").read_text()


def needed() -> set[str]:
    return {entry.name for entry in locked.needed(LOCK, PROJECT)}


def test_the_packages_are_all_that_the_installed_ones_ask_for() -> None:
    """The lock's comments name the dependents of each package; the metadata of installed packages must agree."""
    found: dict[str, set[str]] = {}
    todo: list[tuple[str, set[str]]] = [("herdsman", {"", *contents.EXTRAS})]
    while todo:
        name, extras = todo.pop()
        if name in contents.LEFT_OUT_PACKAGES or extras <= found.get(name, set()):
            continue
        found[name] = found.get(name, set()) | extras
        for text in metadata.requires(name) or []:
            requirement = Requirement(text)
            if requirement.marker is None or any(requirement.marker.evaluate({"extra": one}) for one in found[name]):
                todo.append((canonicalize_name(requirement.name), {"", *requirement.extras}))
    # The lock also contains packages for other platforms.
    other = {entry.name for entry in locked.parse(LOCK) if "sys_platform == 'win32'" in entry.text}
    assert set(found) - {"herdsman"} == needed() - other


def test_nothing_that_only_tests_need_is_in_it() -> None:
    assert not needed() & {
        "pytest",
        "hypothesis",
        "ruff",
        "mypy",
        "grimp",
        "setuptools",
        "pip",
        "numpy",
        *contents.LEFT_OUT_PACKAGES,
    }
    assert set(contents.LEFT_OUT_PACKAGES) <= {entry.name for entry in locked.parse(LOCK)}


def test_every_requirement_has_its_hashes_and_marker() -> None:
    text = locked.requirements(locked.needed(LOCK, PROJECT))
    for block in re.split(r"\n(?=\S)", text.rstrip("\n")):
        assert "==" in block and "--hash=sha256:" in block and not block.endswith("\\"), block
        assert block in LOCK
    assert "deprecated==1.3.1 ; python_full_version < '3.12'" in text
    assert "deprecated==3.0.1 ; python_full_version >= '3.12'" in text


def test_a_dependency_that_the_lock_lacks_is_named() -> None:
    with pytest.raises(locked.LockUnclear, match=r"lacks prometheus-client"):
        locked.needed(LOCK.replace("\nprometheus-client==", "\nprometheus-others=="), PROJECT)


def imports(path: Path) -> set[str]:
    names: set[str] = set()
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Import):
            names |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom) and node.module and not node.level:
            names |= {node.module, *(f"{node.module}.{alias.name}" for alias in node.names)}
        elif isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id == "import_alone":
            names |= {one.value for one in node.args if isinstance(one, ast.Constant)}
    return names


def test_both_images_take_all_packages() -> None:
    """The loop in the image would fail at its first import of a package that is left out."""
    copied = re.findall(r"^!(\w+)$", (ROOT / ".containerignore").read_text(), re.MULTILINE)
    assert {name for name in copied if (ROOT / name).is_dir()} == set(PACKAGES)
    assert set(image_packages.SOURCES) == set(PACKAGES)


def test_no_module_imports_what_is_left_out() -> None:
    owners = metadata.packages_distributions()
    absent = {
        module for module, names in owners.items() if {canonicalize_name(name) for name in names}.isdisjoint(needed())
    }
    absent -= {"herdsman", *PACKAGES}
    absent |= {name.replace("/", ".") for name in contents.LEFT_OUT_MODULES}
    found = {
        (str(path.relative_to(ROOT)), name)
        for folder in PACKAGES
        for path in (ROOT / folder).rglob("*.py")
        for name in imports(path)
        if any(name == one or name.startswith(f"{one}.") for one in absent)
    }
    # MkDocs calls this module if it is installed.
    found = {(path, name) for path, name in found if path != "tools/site_links.py"}
    # The first makes the model of the demo and the tests. The second is imported only if the SDK is installed.
    assert {path for path, _ in found} == {"tools/tiny_model.py", "components/sdk_resources.py"}


@pytest.mark.parametrize(
    ("path", "kept"),
    [
        ("usr/bin/python3.11", True),
        ("usr/bin/dpkg", False),
        ("usr/bin/busybox", True),
        ("usr/sbin/update-ca-certificates", False),
        ("usr/lib/x86_64-linux-gnu/libssl.so.3", True),
        ("usr/lib/aarch64-linux-gnu/gconv/BIG5.so", False),
        ("usr/lib/python3.11/ssl.py", True),
        ("usr/lib/python3.11/test/__init__.py", False),
        ("usr/lib/python3.11/lib-dynload/_ssl.cpython-311-aarch64-linux-gnu.so", True),
        ("usr/lib/python3.11/lib-dynload/nis.cpython-311-aarch64-linux-gnu.so", False),
        ("usr/share/doc/libc6/copyright", True),
        ("usr/share/doc/libc6/changelog.Debian.gz", False),
        ("usr/share/man/man1/python3.11.1.gz", False),
        ("usr/lib/python3.11/sitecustomize.py", False),
        ("etc/python3.11/sitecustomize.py", False),
        ("etc/services", True),
        ("etc/os-release", True),
        ("var/lib/dpkg/info/x", False),
    ],
)
def test_of_debian_only_what_runs_is_kept(path: str, kept: bool) -> None:
    assert contents.keeps(path) is kept


def test_an_environment_is_trimmed_to_herdsman(tmp_path: Path) -> None:
    packages = tmp_path / "lib/python3.11/site-packages"
    for name in (
        "pip",
        "setuptools-84.2.1.dist-info",
        "kubernetes/aio/client",
        "kubernetes/client",
        "pulumi_kubernetes/core",
        "_distutils_hack",
    ):
        (packages / name).mkdir(parents=True)
        (packages / name / "x.py").touch()
    (tmp_path / "bin").mkdir()
    for name in ("python3", "python", "pip", "fab", "herdsman", "pulumi-resource-herdsman"):
        (tmp_path / "bin" / name).touch()
    information = packages / "herdsman-0.1.0.dist-info"
    information.mkdir()
    scripts = "[console_scripts]\nherdsman = automation.cli.main:main\npulumi-resource-herdsman = a.b:main\n"
    (information / "entry_points.txt").write_text(scripts)
    (information / "RECORD").write_text(
        "../../../bin/herdsman,sha256=x,1\nkubernetes/client/x.py,sha256=y,2\nkubernetes/aio/client/x.py,,\n"
        "herdsman-0.1.0.dist-info/direct_url.json,sha256=z,3\n"
    )
    (information / "direct_url.json").write_text('{"url": "file:///src"}')

    trim.trim_environment(tmp_path)

    assert {path.name for path in (tmp_path / "bin").iterdir()} == {
        "python3",
        "python",
        "herdsman",
        "pulumi-resource-herdsman",
    }
    assert {path.name for path in packages.iterdir()} == {"kubernetes", "herdsman-0.1.0.dist-info"}
    assert {path.name for path in (packages / "kubernetes").iterdir()} == {"client"}
    # RECORD names neither paths of the machine nor missing files.
    assert (information / "RECORD").read_text() == "kubernetes/client/x.py,sha256=y,2\n"
    assert not (information / "direct_url.json").exists()
