"""The pods by which `herdsman cache` looks into a model cache and clears it. Pure; `automation.models` runs them.

They use the image of the init containers, run as its user, not root, and end by themselves: no command that was
interrupted leaves one running.
"""

from __future__ import annotations

import re
from collections.abc import Sequence

from components.downloader import CURL_UID
from components.model_files import CACHE_MOUNT, CACHE_VOLUME
from components.options import RenderOptions
from program.desired.base import JsonObject

COMPONENT = "cache-inspector"
DEADLINE_S = 600
KEY = re.compile(r"[0-9a-f]{16}")
"""What LLMKube and Herdsman name a model's directory."""

# One line for each directory: name, KiB, files, when it last changed, and whether a download is under way in it.
_LIST = f"""
cd {CACHE_MOUNT} || exit 1
for dir in */; do
  [ -d "$dir" ] || continue
  name=${{dir%/}}
  case $name in lost+found) continue ;; esac
  busy=0
  [ -z "$(find "$name" -path '*.lock/*' -mmin -10 2>/dev/null | head -n 1)" ] || busy=1
  size=$(du -sk "$name" 2>/dev/null | cut -f1)
  files=$(find "$name" -type f ! -name '.*' ! -path '*/.*' 2>/dev/null | wc -l)
  echo "cache $name ${{size:-0}} $files $(stat -c %Y "$name") $busy"
done
echo end
"""

# The name goes first, in one step: a pod that starts now finds no half of a directory, but none.
_PRUNE = f"""
cd {CACHE_MOUNT} || exit 1
rm -rf .herdsman-trash.*
for key in $KEYS; do
  [ -d "$key" ] || {{ echo "gone $key"; continue; }}
  if [ -n "$(find "$key" -path '*.lock/*' -mmin -10 2>/dev/null | head -n 1)" ]; then
    echo "busy $key"
  elif mv "$key" ".herdsman-trash.$key" && rm -rf ".herdsman-trash.$key"; then
    echo "deleted $key"
  else
    echo "failed $key"
  fi
done
echo end
"""


def inspector_pod(name: str, namespace: str, claim: str, options: RenderOptions, *, node: str = "") -> JsonObject:
    """Build a pod that prints what lies in a cache; it mounts the claim read-only."""
    return _pod(name, namespace, claim, options, node=node, script=_LIST, env=[], read_only=True)


def pruning_pod(
    name: str, namespace: str, claim: str, keys: Sequence[str], options: RenderOptions, *, node: str = ""
) -> JsonObject:
    """Build a pod that deletes directories of a cache, and none in which a download is under way.

    Raises ValueError for a key that is none.
    """
    for key in keys:
        if not KEY.fullmatch(key):
            raise ValueError(f"`{key}` is not a cache key")
    env = [{"name": "KEYS", "value": " ".join(keys)}]
    return _pod(name, namespace, claim, options, node=node, script=_PRUNE, env=env, read_only=False)


def _pod(
    name: str,
    namespace: str,
    claim: str,
    options: RenderOptions,
    *,
    node: str,
    script: str,
    env: list[JsonObject],
    read_only: bool,
) -> JsonObject:
    security: JsonObject = {
        "runAsUser": CURL_UID,
        "runAsNonRoot": True,
        "seccompProfile": {"type": "RuntimeDefault"},
    }
    if options.default_fs_group > 0:
        security["fsGroup"] = options.default_fs_group
        # Ownership was set when the files came; going over terabytes again would take minutes.
        security["fsGroupChangePolicy"] = "OnRootMismatch"
    container: JsonObject = {
        "name": "cache",
        "image": options.init_image,
        "command": ["sh", "-c", script.strip()],
        "volumeMounts": [{"name": CACHE_VOLUME, "mountPath": CACHE_MOUNT, "readOnly": read_only}],
        "terminationMessagePolicy": "FallbackToLogsOnError",
        "securityContext": {"allowPrivilegeEscalation": False, "capabilities": {"drop": ["ALL"]}},
    }
    if env:
        container["env"] = env
    spec: JsonObject = {
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
