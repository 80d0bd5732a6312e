"""The pods by which `herdsman cache` looks into a model cache and clears it. Pure; `automation.models` runs them.

They use the image of the init containers, run as its user, not root, and end by themselves: no command that was
interrupted leaves one running.
"""

from __future__ import annotations

import re
from collections.abc import Sequence

from components.download_script import script_without_comments
from components.downloader import CURL_UID
from components.model_files import CACHE_MOUNT, CACHE_VOLUME
from components.options import RenderOptions
from kubeapi.json_types import Json

COMPONENT = "cache-inspector"
DEADLINE_S = 600
KEY = re.compile(r"[0-9a-f]{16}")
"""What LLMKube and Herdsman name a model's directory."""


def inspector_pod(name: str, namespace: str, claim: str, options: RenderOptions, *, node: str = "") -> Json:
    """Build a pod that prints what lies in a cache; it mounts the claim read-only."""
    return _pod(name, namespace, claim, options, node=node, command=_command("cache_listing.sh"), read_only=True)


def pruning_pod(
    name: str, namespace: str, claim: str, keys: Sequence[str], options: RenderOptions, *, node: str = ""
) -> Json:
    """Build a pod that deletes directories of a cache, and none in which a download is under way.

    Raises ValueError for a key that is none.
    """
    for key in keys:
        if not KEY.fullmatch(key):
            raise ValueError(f"`{key}` is not a cache key")
    command = _command("cache_deletion.sh", *keys)
    return _pod(name, namespace, claim, options, node=node, command=command, read_only=False)


def _command(file: str, *keys: str) -> list[str]:
    return ["sh", "-c", script_without_comments(file), "sh", CACHE_MOUNT, *keys]


def _pod(
    name: str,
    namespace: str,
    claim: str,
    options: RenderOptions,
    *,
    node: str,
    command: list[str],
    read_only: bool,
) -> Json:
    security: Json = {
        "runAsUser": CURL_UID,
        "runAsNonRoot": True,
        "seccompProfile": {"type": "RuntimeDefault"},
    }
    if options.default_fs_group > 0:
        security["fsGroup"] = options.default_fs_group
        # Ownership was set when the files came; going over terabytes again would take minutes.
        security["fsGroupChangePolicy"] = "OnRootMismatch"
    container: Json = {
        "name": "cache",
        "image": options.init_image,
        "command": command,
        "volumeMounts": [{"name": CACHE_VOLUME, "mountPath": CACHE_MOUNT, "readOnly": read_only}],
        "terminationMessagePolicy": "FallbackToLogsOnError",
        "securityContext": {"allowPrivilegeEscalation": False, "capabilities": {"drop": ["ALL"]}},
    }
    spec: Json = {
        "restartPolicy": "Never",
        "activeDeadlineSeconds": DEADLINE_S,
        "automountServiceAccountToken": False,
        "securityContext": security,
        "containers": [container],
        "volumes": [{"name": CACHE_VOLUME, "persistentVolumeClaim": {"claimName": claim}}],
    }
    if node:
        # A volume that only one node may mount at a time is looked at where it is.
        spec["nodeName"] = node
    return {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {
            "name": name,
            "namespace": namespace,
            "labels": {"app.kubernetes.io/component": COMPONENT, "app.kubernetes.io/managed-by": "herdsman"},
        },
        "spec": spec,
    }
