"""Whether Herdsman may add arguments for adapters to a container that a custom resource describes. Pure.

llama-server loads adapters by its arguments only. Arguments of the wrong form end it at its start. So they are added
only where the program and its build are known: in images of llama.cpp.
"""

from __future__ import annotations

import re

from kubeapi.json_types import Json
from program.desired.adapter import AdapterReason
from program.dialects.pods.engine import argv_of
from program.runtimes.flags import word_of

Refusal = tuple[AdapterReason | None, str]
"""The reason and the message why something is not possible; (None, "") if it is."""
POSSIBLE: Refusal = (None, "")

OLDEST_BUILD = 8000
"""`--cache-ram` exists since October 2025, `--lora-scaled FILE:SCALE` since December 2025 (about build 7460)."""
_REPOSITORIES = ("ggml-org/llama.cpp", "ggerganov/llama.cpp")
"""The images of llama.cpp, also in mirrors: the ends of their names."""
_PROGRAM = "llama-server"
_BUILD = re.compile(r"-b(\d+)$")
_REMEDY = "or mount the file in the pods, name it in the arguments of llama-server, and set spec.path"


def why_no_arguments(container: Json) -> Refusal:
    """Return why Herdsman adds no arguments to a container whose engine is llama.cpp."""
    image = str(container.get("image") or "")
    problem = _of_image(image) or _of_program(container, image)
    if problem:
        return AdapterReason.SOURCE_NOT_SUPPORTED, problem
    size = word_of(argv_of(container), "--cache-ram", "-cram")
    if size not in ("", "0"):
        why = f"llama-server would answer with cached prompts of other adapters (--cache-ram {size})"
        return AdapterReason.NOT_IN_ARGUMENTS, f"{why}; set --cache-ram 0 in its arguments, or remove --cache-ram"
    return POSSIBLE


def _of_image(image: str) -> str:
    """Return why the build of llama-server in an image is not known to take the arguments; empty if it is."""
    repository, tag, digest = _parts(image)
    if not any(repository == each or repository.endswith(f"/{each}") for each in _REPOSITORIES):
        why = f"image `{image}` is not llama.cpp's own, so Herdsman does not know the arguments of its llama-server"
        return f"{why}; use an image of ggml-org/llama.cpp, {_REMEDY}"
    if not repository.endswith(_REPOSITORIES[0]):
        why = f"image `{image}` is of a repository that llama.cpp left at an older build"
        return f"{why}; use one of ggml-org/llama.cpp with build {OLDEST_BUILD} or newer, {_REMEDY}"
    build = _BUILD.search(tag)
    if build is None and digest:
        why = f"image `{image}` is named by its digest without a build, so Herdsman does not know its arguments"
        return f"{why}; name the build in the tag, such as server-b{OLDEST_BUILD}, {_REMEDY}"
    if build is not None and int(build[1]) < OLDEST_BUILD:
        why = f"build {build[1]} of image `{image}` takes other arguments for adapters"
        return f"{why}; use build {OLDEST_BUILD} or newer, {_REMEDY}"
    return ""


def _of_program(container: Json, image: str) -> str:
    """Return why arguments of a container would not reach llama-server; empty if they do."""
    command = [str(word) for word in container.get("command") or ()]
    if command and command[0].rpartition("/")[2] != _PROGRAM:
        why = f"the command of container `{container.get('name')}` starts `{command[0]}` and not llama-server itself"
        return f"{why}, so Herdsman can add no argument; start llama-server directly, {_REMEDY}"
    if not command and not _parts(image)[1].startswith("server"):
        why = f"image `{image}` does not start llama-server by itself"
        return f"{why}; use a tag that begins with `server`, or set the command, {_REMEDY}"
    return ""


def _parts(image: str) -> tuple[str, str, str]:
    """Split the name of an image into repository, tag and digest."""
    name, _, digest = image.partition("@")
    head, slash, last = name.rpartition("/")
    last, _, tag = last.partition(":")
    return f"{head}{slash}{last}", tag, digest
