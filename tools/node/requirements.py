"""Checks what a real node needs on this machine, before anything starts. `node` and the tests call `missing`."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

from tools.node import cgroups
from tools.toolchain import cache_dir

PROGRAMS: dict[str, str] = {
    "containerd": "containerd",
    "ctr": "containerd",
    "containerd-shim-runc-v2": "containerd",
    "runc": "runc",
    "nft": "nftables",
    "ip": "iproute2",
    "unshare": "util-linux",
    "nsenter": "util-linux",
    "busybox": "busybox-static",
    "curl": "curl",
    "ldd": "libc-bin",
}
"""The programs, each with its package in Debian."""
_PLUGIN_FOLDERS = (Path("/usr/lib/cni"), Path("/opt/cni/bin"))
_PLUGINS = ("loopback", "ptp", "host-local")
_OWN_FOLDERS = (Path("/run"), Path("/var/run"), Path("/var/lib"), Path("/var/log"))
"""Folders of which a node has private versions, so that files which it must read cannot be in them."""


def missing(directory: Path) -> str | None:
    """Return the reason why no node can run in this directory, and what to do; None if one can."""
    if sys.platform != "linux":
        return f"a node runs on Linux only, and this is {sys.platform}"
    if os.geteuid() != 0:
        return "a node needs root, to create namespaces and control groups"
    if absent := [name for name in PROGRAMS if shutil.which(name) is None]:
        packages = sorted({PROGRAMS[name] for name in absent})
        return f"{', '.join(absent)} not on PATH: `apt-get install {' '.join(packages)}`"
    if cni_plugins() is None:
        return f"no network plugins ({', '.join(_PLUGINS)}): `apt-get install containernetworking-plugins`"
    if controllers := cgroups.missing():
        return f"the control groups {', '.join(controllers)} are not mounted"
    for path in (directory, cache_dir(), Path(sys.prefix), Path(__file__).parent):
        if any(path.resolve().is_relative_to(folder) for folder in _OWN_FOLDERS):
            return (
                f"a node cannot see {path}, because it has its own {path.resolve().parts[1]} folder; choose "
                f"another folder"
            )
    return _refused()


def cni_plugins() -> Path | None:
    """Return the folder with the network plugins; None if there is none."""
    for folder in _PLUGIN_FOLDERS:
        if all((folder / name).is_file() for name in _PLUGINS):
            return folder
    return None


def _refused() -> str | None:
    """Try to make namespaces and control groups, which root in a container often may not; return the reason."""
    attempt = subprocess.run(
        ["unshare", "--mount", "--net", "--pid", "--fork", "--mount-proc", "true"],
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    if attempt.returncode != 0:
        return f"this machine does not allow to create namespaces: {attempt.stderr.strip()}"
    trial = f"herdsman-trial-{os.getpid()}"
    try:
        cgroups.make(trial)
    except OSError as error:
        return f"this machine does not allow to create control groups: {error}"
    finally:
        cgroups.remove(trial)
    return None
