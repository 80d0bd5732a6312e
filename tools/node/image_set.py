"""The images that a local node needs without a registry: the pause container, the downloader, llama-server.

Each is made of programs of this machine. `herdsman.test` is a name that no registry can have (RFC 6761).
"""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path

from tools.node.configuration import PAUSE_IMAGE
from tools.node.images import Entry, Image, Link, accounts, with_libraries
from tools.toolchain import ToolMissing

DOWNLOADER_IMAGE = "herdsman.test/downloader:1"
LLAMA_SERVER_IMAGE = "herdsman.test/llama-server:1"
_CERTIFICATES = Path("/etc/ssl/certs/ca-certificates.crt")
_CURL_USER = ("curl_user", 100, 101)
"""The user of the usual image, docker.io/curlimages/curl."""


def pause() -> Image:
    """Return the image of the pause container, which holds a pod's namespaces: it waits, reaps, ends on a signal."""
    script = "trap 'exit 0' TERM INT; while :; do sleep 3600 & wait; done"
    return Image(PAUSE_IMAGE, shell(), entrypoint=("/bin/sh", "-c", script))


def downloader() -> Image:
    """Return an image with a shell, curl and certificates, for the user of the usual curl image."""
    _, uid, gid = _CURL_USER
    files = {**shell(), **_curl(), **accounts([_CURL_USER])}
    return Image(DOWNLOADER_IMAGE, files, user=f"{uid}:{gid}", folders={"tmp": 0o1777})


def llama_server(program: Path) -> Image:
    """Return an image with llama-server, a shell and curl, as in the image of llama.cpp."""
    files = {**shell(), **_curl(), **accounts([]), **with_libraries(program, at="app/llama-server")}
    return Image(LLAMA_SERVER_IMAGE, files, entrypoint=("/app/llama-server",), folders={"tmp": 0o1777})


def shell() -> dict[str, Entry]:
    """Return a static busybox with a link for each of its commands.

    Raises:
        ToolMissing: there is no busybox, or the one found is not static.
    """
    busybox = _program("busybox", "`apt-get install busybox-static`")
    applets = subprocess.run([str(busybox), "--list"], capture_output=True, text=True, timeout=60, check=True).stdout
    links = {f"bin/{name}": Link("busybox") for name in applets.split() if name != "busybox"}
    return {**links, **with_libraries(busybox, at="bin/busybox")}


def _curl() -> dict[str, Entry]:
    files = with_libraries(_program("curl", "`apt-get install curl`"), at="usr/bin/curl")
    if _CERTIFICATES.is_file():
        files[str(_CERTIFICATES).lstrip("/")] = _CERTIFICATES
    return files


def _program(name: str, remedy: str) -> Path:
    found = shutil.which(name)
    if found is None:
        raise ToolMissing(name, "is needed for the images of a local node and is not on PATH", remedy)
    return Path(found).resolve()
