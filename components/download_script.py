"""The downloader's shell script: what pods run, and what of it counts in hashes. Called by `downloader`, `rendered`.

The text of the script is improved in many releases; the pods that it once served have long done with it. So hashes
know its version and not its text, and no upgrade restarts pods for its sake. docs/adr/0008.
"""

from __future__ import annotations

import functools
import importlib.resources
import json

VERSION = 1
"""Raised only when a fix of the script must reach pods that run: every pod with a downloader then starts anew."""


@functools.cache
def download_script() -> str:
    """Return the script without its comments: it is stored once with each Deployment."""
    return script_without_comments("model_download.sh")


def script_by_version(text: str) -> str:
    """Replace the script in canonical JSON by what stands for its version, for a hash of the result."""
    return text.replace(*_in_json())


@functools.cache
def _in_json() -> tuple[str, str]:
    # Deployments made before there was a version carry hashes over the text of that time: it stands for version 1.
    stand_in = script_without_comments("model_download.v1.sh") if VERSION == 1 else f"herdsman downloader {VERSION}"
    return json.dumps(download_script()), json.dumps(stand_in)


def script_without_comments(file: str) -> str:
    """Read a shell script of this package, less what only its readers need."""
    text = importlib.resources.files("components").joinpath(file).read_text(encoding="utf-8")
    lines = (line.strip() for line in text.splitlines())
    return "\n".join(line for line in lines if line and not line.startswith("#")) + "\n"
