"""An image of the operator with the code of an earlier commit, added as a layer to an image that the node has.

Only Herdsman's own packages are of that commit. Python, the libraries and the Pulumi CLI are those of the image.
"""

from __future__ import annotations

import compileall
import hashlib
import io
import json
import py_compile
import subprocess
import tarfile
from pathlib import Path
from typing import Any

import pytest

from tests.support.packages import PACKAGES
from tools.node.node import Node

REPOSITORY = Path(__file__).parents[2]
_AT = "opt/earlier"
_INDEX = "application/vnd.oci.image.index.v1+json"
_LAYER = "application/vnd.oci.image.layer.v1.tar"


def commit_before() -> str:
    """Return the commit before the one that is checked out; skip the test where the history lacks it."""
    answer = _git("rev-parse", "--verify", "--quiet", "HEAD~1")
    if answer.returncode != 0:
        pytest.skip("needs the commit before: the clone is too shallow (git fetch --deepen=1)")
    return answer.stdout.decode().strip()


def load_image(node: Node, image: str, commit: str, *, name: str, folder: Path) -> None:
    """Load the image `name` into the node: `image`, which the node has, with the packages of the commit on top."""
    layer = _layer(commit, folder / "code")
    described = _described(node, image)
    manifest = json.loads(node.ctr("content", "get", _for_this_machine(node, described)["digest"]))
    settings = json.loads(node.ctr("content", "get", manifest["config"]["digest"]))
    settings["rootfs"]["diff_ids"].append(_digest(layer))
    settings.setdefault("history", []).append({"created_by": f"the code of {commit}"})
    settings["config"].setdefault("Env", []).append(f"PYTHONPATH=/{_AT}")
    configuration = json.dumps(settings).encode()
    manifest["config"] |= {"digest": _digest(configuration), "size": len(configuration)}
    manifest["layers"].append({"mediaType": _LAYER, "digest": _digest(layer), "size": len(layer)})
    content = json.dumps(manifest).encode()
    named = {"io.containerd.image.name": name}
    entry = {"mediaType": manifest["mediaType"], "digest": _digest(content), "size": len(content), "annotations": named}
    index = json.dumps({"schemaVersion": 2, "mediaType": _INDEX, "manifests": [entry]}).encode()
    archive = folder / "earlier.tar"
    # The node's store has the lower layers already, so the archive leaves them out.
    blobs = {f"blobs/sha256/{_digest(blob)[7:]}": blob for blob in (layer, configuration, content)}
    with tarfile.open(archive, mode="w") as tar:
        for path, blob in {"oci-layout": b'{"imageLayoutVersion": "1.0.0"}', "index.json": index, **blobs}.items():
            member = tarfile.TarInfo(path)
            member.size = len(blob)
            tar.addfile(member, io.BytesIO(blob))
    node.load_archive(archive)


def _layer(commit: str, folder: Path) -> bytes:
    """Return the packages of a commit as a layer. They are compiled, since the image's file system is read-only."""
    archive = _git("archive", commit, "--", *PACKAGES)
    assert archive.returncode == 0, archive.stderr.decode()
    with tarfile.open(fileobj=io.BytesIO(archive.stdout)) as tar:
        tar.extractall(folder, filter="data")
    # In this mode Python does not compare the time stamps of source files.
    mode = py_compile.PycInvalidationMode.UNCHECKED_HASH
    assert compileall.compile_dir(folder, quiet=2, invalidation_mode=mode)
    layer = io.BytesIO()
    with tarfile.open(fileobj=layer, mode="w") as tar:
        tar.add(folder, _AT)
    return layer.getvalue()


def _described(node: Node, image: str) -> str:
    """Return the digest that the name of an image refers to."""
    for line in node.ctr("images", "ls", f"name=={image}").splitlines()[1:]:
        return line.split()[2]
    raise AssertionError(f"the node has no image {image}")


def _for_this_machine(node: Node, digest: str) -> dict[str, Any]:
    found = json.loads(node.ctr("content", "get", digest))
    return dict(found["manifests"][0]) if "manifests" in found else {"digest": digest}


def _digest(blob: bytes) -> str:
    return f"sha256:{hashlib.sha256(blob).hexdigest()}"


def _git(*words: str) -> subprocess.CompletedProcess[bytes]:
    return subprocess.run(["git", "-C", str(REPOSITORY), *words], capture_output=True, timeout=60, check=False)
