"""The operator's image from `herdsman image build`: it is built twice, read back, and run without a network by runc.

No node is started. runc runs the image as root on Linux, with a read-only root file system.

The image for the other architecture is built if its Pulumi CLI is in the cache of tools. CI compiles the CLI only for
the processor that it runs on, and skips these tests. `herdsman image build --architecture` fetches the other CLI once.
The release workflow builds both images.
"""

from __future__ import annotations

import gzip
import hashlib
import json
import os
import re
import shutil
import struct
import subprocess
import sys
import tarfile
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from automation.install import operator
from tests.support import needs
from tests.support.packages import PACKAGES
from tools import versions
from tools.image import contents, locked
from tools.image.build import own_architecture
from tools.image.requirements import missing
from tools.toolchain import cache_dir

pytestmark = pytest.mark.soak

OTHER = needs.OTHER_ARCHITECTURE
NAME = "herdsman.test/herdsman:1.2"
SIZE_LIMIT = 400_000_000


@dataclass(frozen=True)
class Image:
    """The archive and the output of one build."""

    told: dict[str, Any]
    members: Mapping[str, tarfile.TarInfo]
    settings: dict[str, Any]

    @property
    def archive(self) -> Path:
        return Path(self.told["archive"])

    def layers(self) -> Iterator[tarfile.TarFile]:
        """Yield the layers of the docker-archive in their order."""
        with tarfile.open(self.archive) as outer:
            for name in _manifest(outer)["Layers"]:
                with tarfile.open(fileobj=outer.extractfile(name)) as layer:
                    yield layer

    def files(self) -> set[str]:
        return {name for name, member in self.members.items() if not member.isdir()}


def build(folder: Path, architecture: str, *, cache: Path | None = None) -> Image:
    """Run `herdsman image build`, and read the archive."""
    command = ["image", "build", "-o", str(folder / "image.tar"), "-t", NAME, "--architecture", architecture]
    environment = {**os.environ, **({"HERDSMAN_CACHE": str(cache)} if cache else {})}
    environment.pop("SOURCE_DATE_EPOCH", None)
    ended = subprocess.run(
        [sys.executable, "-m", "automation.cli", *command, "--format", "json"],
        capture_output=True,
        text=True,
        timeout=1800,
        env=environment,
    )
    assert ended.returncode == 0, ended.stderr[-4000:]
    told = json.loads(ended.stdout)
    with tarfile.open(told["archive"]) as outer:
        manifest = _manifest(outer)
        assert manifest["RepoTags"] == [NAME]
        settings = json.loads(_bytes(outer, manifest["Config"]))
    image = Image(told, {}, settings)
    members = {member.name: member for layer in image.layers() for member in layer}
    return Image(told, members, settings)


def _manifest(outer: tarfile.TarFile) -> dict[str, Any]:
    (manifest,) = json.loads(_bytes(outer, "manifest.json"))
    found: dict[str, Any] = manifest
    return found


def _bytes(tar: tarfile.TarFile, name: str | tarfile.TarInfo) -> bytes:
    file = tar.extractfile(name)
    assert file is not None
    return file.read()


@pytest.fixture(scope="module")
def image(tmp_path_factory: pytest.TempPathFactory) -> Image:
    """The image for this machine, built with the layers in the user's cache."""
    needs.require("image")
    return build(tmp_path_factory.mktemp("image"), own_architecture())


@pytest.fixture(scope="module")
def foreign(tmp_path_factory: pytest.TempPathFactory) -> Image:
    """The image for the other architecture."""
    needs.require("image")
    needs.require("image for another architecture")
    return build(tmp_path_factory.mktemp("foreign"), OTHER)


@pytest.fixture(scope="module")
def bundle(image: Image, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The image as a bundle for runc, unpacked by umoci."""
    if os.geteuid() != 0 or shutil.which("runc") is None:
        pytest.skip("needs root and runc to run an image: apt-get install runc")
    folder = tmp_path_factory.mktemp("bundle") / "bundle"
    subprocess.run(["umoci", "unpack", "--image", f"{image.told['layout']}:1.2", str(folder)], check=True, timeout=300)
    return folder


def inside(bundle: Path, *argv: str) -> subprocess.CompletedProcess[str]:
    """Run a command in the image with its user and environment, without network and with a read-only root."""
    config = json.loads((bundle / "config.json").read_text())
    config["process"] |= {"terminal": False, "args": list(argv), "noNewPrivileges": True}
    config["process"]["capabilities"] = {}
    config["root"]["readonly"] = True
    # The operator's pod mounts a volume at /tmp.
    config["mounts"] = [mount for mount in config["mounts"] if mount["destination"] in ("/proc", "/dev")]
    config["mounts"].append({"destination": "/tmp", "type": "tmpfs", "source": "tmpfs", "options": ["mode=1777"]})
    config["linux"] |= {"resources": {}, "maskedPaths": [], "readonlyPaths": []}
    (bundle / "config.json").write_text(json.dumps(config))
    name = f"herdsman-image-test-{os.getpid()}"
    command = ["runc", "--root", str(bundle / "runc"), "run", "--no-pivot", "--bundle", str(bundle), name]
    return subprocess.run(command, capture_output=True, text=True, timeout=300)


def test_it_starts_as_the_pod_expects(image: Image) -> None:
    assert image.settings["config"] == {
        "User": f"{operator.USER}:{operator.USER}",
        "ExposedPorts": {f"{operator.HEALTH_PORT}/tcp": {}},
        "Env": [f"{name}={value}" for name, value in contents.ENVIRONMENT.items()],
        "Entrypoint": ["herdsman"],
        "Cmd": ["run"],
        "WorkingDir": "/tmp",
        "Labels": {
            **contents.LABELS,
            "org.opencontainers.image.version": image.settings["config"]["Labels"]["org.opencontainers.image.version"],
        },
    }
    assert (image.settings["architecture"], image.settings["os"]) == (own_architecture(), "linux")


def test_the_command_says_what_is_in_it(image: Image) -> None:
    parts = {part["name"]: part for part in image.told["parts"]}
    assert list(parts) == ["debian", "pulumi", "packages", "herdsman"]
    assert {"libc6", "libssl3", "python3.11-minimal"} <= set(parts["debian"]["packages"])
    named = {"kubernetes", "pulumi", "grpcio", "opentelemetry-exporter-otlp-proto-http"}
    assert named <= set(parts["packages"]["packages"])
    assert set(parts["herdsman"]["packages"]) == {"herdsman"}
    sizes = sum(member.size for member in image.members.values() if member.isfile())
    assert image.told["size_bytes"] == sizes < SIZE_LIMIT
    assert 0 < image.told["packed_bytes"] < sizes / 2
    layout = Path(image.told["layout"])
    [found] = json.loads((layout / "index.json").read_text())["manifests"]
    assert found["digest"] == image.told["digest"]


def test_another_build_from_nothing_gives_the_same_bytes(image: Image, tmp_path: Path) -> None:
    cache = tmp_path / "a cache elsewhere"
    (cache / "image").mkdir(parents=True)
    (cache / "tools").symlink_to(cache_dir() / "tools")
    # The second build reuses the downloads of the first, since Debian may publish an update between the two.
    shutil.copytree(cache_dir() / "image/debian", cache / "image/debian", copy_function=os.link)
    again = build(tmp_path, own_architecture(), cache=cache)
    assert again.told["digest"] == image.told["digest"]
    assert _sha256(again.archive) == _sha256(image.archive)


def test_a_second_build_takes_what_is_there(image: Image, tmp_path: Path) -> None:
    again = build(tmp_path, own_architecture())
    assert _sha256(again.archive) == _sha256(image.archive)
    assert again.told["seconds"] < 120


def _sha256(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


@pytest.mark.parametrize("which", ["image", "foreign"])
def test_nothing_in_it_is_anybodys_but_roots_or_gains_rights(which: str, request: pytest.FixtureRequest) -> None:
    members = request.getfixturevalue(which).members.values()
    assert {(member.uid, member.gid) for member in members} == {(0, 0)}
    assert {member.mtime for member in members} == {0}
    assert not [member.name for member in members if member.mode & 0o6000]
    writable = {member.name for member in members if member.mode & 0o022 and not member.issym()}
    assert writable == contents.STICKY_FOLDERS
    assert {member.type for member in members} == {tarfile.REGTYPE, tarfile.DIRTYPE, tarfile.SYMTYPE}


@pytest.mark.parametrize("which", ["image", "foreign"])
def test_it_names_nothing_of_the_machine_that_built_it(which: str, request: pytest.FixtureRequest) -> None:
    image: Image = request.getfixturevalue(which)
    home = Path.home()
    # Binaries that others built may contain a short home such as /root, but no folder below it.
    paths = {
        str(cache_dir()),
        str(locked.ROOT),
        str(image.archive.parent),
        str(Path(sys.prefix)),
        f"{home}/go/",
        f"{home}/.cache/",
    }
    words = [path.encode() for path in sorted(paths)]
    keys = [b"-----BEGIN " + kind + b"PRIVATE KEY-----\nM" for kind in (b"", b"RSA ", b"EC ", b"OPENSSH ")]
    found = []
    for layer in image.layers():
        for member in layer:
            text = _bytes(layer, member) if member.isfile() else member.linkname.encode()
            found += [(member.name, word) for word in (*words, *keys) if word in text]
    assert found == []
    private = re.compile(r"(^|/)(\.netrc|\.pypirc|\.git|\.ssh|id_[a-z0-9]+|kubeconfig|pip\.conf)$")
    assert not [name for name in image.members if private.search(name)]


def test_every_module_has_bytecode_that_is_not_checked(image: Image) -> None:
    folders = (f"usr/lib/python{contents.PYTHON}/", contents.HOME)
    modules = (name for name in image.files() if name.endswith(".py") and name.startswith(folders))
    sources = set(modules)
    # For an absolute link, Python would compile a file of the machine that builds the image.
    assert not [name for name in sources if image.members[name].linkname.startswith("/")]
    compiled = {name for name in image.files() if name.endswith(".pyc")}
    assert len(compiled) == len(sources) > 3000
    for layer in image.layers():
        for member in layer:
            if member.name.endswith(".pyc"):
                _, flags = struct.unpack("<II", _bytes(layer, member)[:8])
                assert flags == 0b01, member.name  # 0b01: hash-based, unchecked


def test_the_other_architecture_has_the_same_files(image: Image, foreign: Image) -> None:
    assert foreign.settings["architecture"] == OTHER
    for setting in ("config", "os", "created"):
        assert foreign.settings[setting] == image.settings[setting]

    def neutral(files: set[str]) -> set[str]:
        names = re.compile(r"x86[_-]64|aarch64|[-.](so\.)?[0-9.]*\.so[0-9.]*|\.libs/.*")
        own = ("ld-linux", "libmvec", "ld64", "usr/lib64", "/cpu")
        return {names.sub("*", name) for name in files if not any(word in name for word in own)}

    assert neutral(image.files()) ^ neutral(foreign.files()) == set()
    machine = {"amd64": 62, "arm64": 183}[OTHER]
    seen = 0
    for layer in foreign.layers():
        for member in layer:
            if member.isfile():
                head = _bytes(layer, member)[:20]
                if head[:4] == b"\x7fELF":
                    assert int.from_bytes(head[18:20], "little") == machine, member.name
                    seen += 1
    assert seen > 80


@pytest.mark.parametrize("which", ["image", "foreign"])
def test_every_library_that_a_program_loads_is_in_it(which: str, request: pytest.FixtureRequest) -> None:
    if shutil.which("readelf") is None:
        pytest.skip("needs readelf: apt-get install binutils")
    image: Image = request.getfixturevalue(which)
    present = {Path(name).name for name in image.files()}
    lacking = set()
    for layer in image.layers():
        for member in layer:
            if not member.isfile() or not (".so" in member.name or "bin/" in member.name):
                continue
            content = _bytes(layer, member)
            if content[:4] == b"\x7fELF":
                told = subprocess.run(["readelf", "-d", "/dev/stdin"], input=content, capture_output=True, timeout=60)
                needed = re.findall(r"\(NEEDED\).*\[(.+)\]", told.stdout.decode())
                lacking |= {(member.name, name) for name in needed if name not in present}
    assert lacking == set()


def test_it_runs_as_its_user_without_network_or_writable_files(bundle: Path) -> None:
    ended = inside(bundle, "herdsman", "version")
    assert (ended.returncode, ended.stderr) == (0, "")
    told = inside(bundle, "sh", "-c", "id -u; id -g; pulumi version; touch /x; touch /opt/herdsman/x")
    assert told.stdout.split() == ["10001", "10001", versions.PULUMI]
    assert told.stderr.count("Read-only file system") == 2


def test_all_of_herdsman_and_of_python_can_be_imported_in_it(bundle: Path) -> None:
    script = (
        f"packages = {PACKAGES}\n"
        + """
import importlib, pkgutil, sys, ssl, hashlib, sqlite3, ctypes, lzma, bz2, zlib, uuid, curses, readline
assert ssl.create_default_context().cert_store_stats()["x509_ca"] > 100
assert sys.version_info[:2] == (3, 11) and sys.prefix == "/opt/herdsman", sys.prefix
failed = []
for folder in packages:
    package = importlib.import_module(folder)
    for found in pkgutil.walk_packages(package.__path__, f"{folder}.", onerror=failed.append):
        if found.name.endswith("__main__"):
            continue
        try:
            importlib.import_module(found.name)
        except Exception as error:
            failed.append((found.name, repr(error)))
import kubernetes.client, kubernetes.config, grpc, fabric, cel, opentelemetry.exporter.otlp.proto.http.trace_exporter
from importlib import metadata
from components.kubernetes_object import sdk_is_installed
assert [name for name, _ in failed] == ["components.sdk_resources"] and not sdk_is_installed(), failed
print(len(sys.modules), metadata.version("pulumi-kubernetes"))
"""
    )
    ended = inside(bundle, "python3", "-c", script)
    assert ended.returncode == 0, ended.stderr


def test_the_loop_says_in_it_that_it_finds_no_cluster(bundle: Path) -> None:
    ended = inside(bundle, "herdsman", "run")
    assert ended.returncode == 1
    assert "Traceback" not in ended.stderr and "kubeconfig" in ended.stdout + ended.stderr


def test_the_files_are_those_that_the_containerfile_installs(image: Image, tmp_path: Path) -> None:
    """Run the commands of the Containerfile's stage `packages` in folders of this test, and compare the files."""
    if sys.version_info[:2] != (3, 11):
        pytest.skip("takes Python 3.11, which both images have")
    text = (locked.ROOT / "Containerfile").read_text()
    stage = text[text.index(" AS packages") : text.rindex("\nFROM ")].replace("\\\n", " ")
    source, home = tmp_path / "src", tmp_path / "herdsman"
    source.mkdir()
    ignored = shutil.ignore_patterns("__pycache__", "*.egg-info", "build")
    for name in re.findall(r"^!(\S+)$", (locked.ROOT / ".containerignore").read_text(), re.MULTILINE):
        path = locked.ROOT / name
        shutil.copytree(path, source / name, ignore=ignored) if path.is_dir() else shutil.copy(path, source / name)
    for command in re.findall(r"^RUN (.+)$", stage, re.MULTILINE):
        script = re.sub(r"#.*", "", command).replace("/tmp/", f"{tmp_path}/").replace("/opt/herdsman", str(home))
        script = script.replace("python -m", f"{sys.executable} -m")
        subprocess.run(["bash", "-euc", script], cwd=source, check=True, timeout=1200, stdout=subprocess.DEVNULL)

    theirs = {
        f"{contents.HOME}/{path.relative_to(home)}"
        for path in home.rglob("*")
        if not path.is_dir() or path.is_symlink()
    }
    ours = {name for name in image.files() if name.startswith(f"{contents.HOME}/")}
    # Only `python -m venv` writes these files.
    theirs -= {name for name in theirs if re.search(r"/bin/([Aa]ctivate.*|python3\.11)$|/lib64$|/\.gitignore$", name)}
    assert ours == theirs


def test_wrong_options_and_missing_programs_are_told(tmp_path: Path) -> None:
    def run(*options: str, path: str | None = None) -> subprocess.CompletedProcess[str]:
        environment = {**os.environ, **({"PATH": path} if path else {})}
        command = [sys.executable, "-m", "automation.cli", "image", "build", *options]
        return subprocess.run(command, capture_output=True, text=True, timeout=120, env=environment, cwd=tmp_path)

    ended = run("--architecture", "riscv64")
    assert ended.returncode == 64 and "is not one of amd64, arm64" in ended.stderr
    ended = run("-o", str(tmp_path))
    assert ended.returncode == 64 and "must be a file that ends in .tar" in ended.stderr
    ended = run(path=str(tmp_path))
    assert ended.returncode == 1 and "apt-get install dpkg mmdebstrap skopeo umoci" in ended.stderr
    assert missing() is None or ended.stderr.count("\n") < 6
    assert list(tmp_path.iterdir()) == []


def test_the_layers_of_archive_and_layout_are_the_same(image: Image) -> None:
    with tarfile.open(image.archive) as outer:
        written = [hashlib.sha256(_bytes(outer, name)).hexdigest() for name in _manifest(outer)["Layers"]]
    assert image.settings["rootfs"]["diff_ids"] == [f"sha256:{digest}" for digest in written]
    layout = Path(image.told["layout"])
    manifest = json.loads((layout / "blobs/sha256" / image.told["digest"].removeprefix("sha256:")).read_text())
    unpacked = []
    for layer in manifest["layers"]:
        with gzip.open(layout / "blobs/sha256" / layer["digest"].removeprefix("sha256:")) as packed:
            unpacked.append(hashlib.file_digest(packed, "sha256").hexdigest())
    assert unpacked == written
