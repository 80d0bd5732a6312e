"""Estimates the memory of a planned process from the plan and its files.

Called by `agent.server.memory.host_memory` before a start. The rules for llama-server are in `program.runtimes`. The
header of a file is read again only after the file changed. If no estimate is possible, `Unknown` is raised instead of a
guess.
"""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Mapping
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path

import psutil

from agent.contract import ProcessPlan
from agent.server.memory.need import Need
from agent.server.models.gguf_header import read_header
from agent.sources.errors import GgufInvalid, NeedMoreBytes
from program.desired.facts import MemoryFacts
from program.desired.model import GgufFacts
from program.runtimes.flags import word_of
from program.runtimes.llamacpp_memory import Serving, model_memory, projector_memory, serving_of, together

BYTES = "bytes"
"""Name of the entry in `paths` that contains the size of the weights in bytes, if a daemon reported it."""
_MODEL = ("--model", "-m")
_DRAFT = ("--model-draft", "-md", "--spec-draft-model")
_PROJECTOR = ("--mmproj", "-mm")
_ADAPTERS = ("--lora", "--control-vector")
_KEPT_HEADERS = 64


class Unknown(Exception):
    """The memory of the process cannot be estimated. The message is the cause."""


@dataclass(frozen=True)
class Estimator:
    """Estimates for one host."""

    headers: Headers

    def need(self, plan: ProcessPlan, paths: Mapping[str, str], *, discrete_gpus: bool) -> Need:
        """Estimate a process whose files are at `paths`, by name. Raises Unknown.

        With `discrete_gpus`, the layers that llama-server offloads count as GPU memory. Otherwise all memory is the
        machine's.
        """
        if plan.memory_bytes is not None:
            return Need(plan.memory_bytes)
        if plan.runtime != "llamacpp":
            told = paths.get(BYTES, "")
            size = int(told) if told.isdecimal() else sum(_size(Path(path)) for path in paths.values())
            if not size:
                raise Unknown(f"runtime `{plan.runtime}` does not report the size, and the plan names no model file")
            return Need(model_memory(GgufFacts(), Serving(), weights_bytes=size).total_bytes)
        argv = [_filled(argument, paths) for argument in plan.argv]
        return self.of_llama_server(argv, paths, discrete_gpus=discrete_gpus)

    def of_llama_server(self, argv: list[str], paths: Mapping[str, str], *, discrete_gpus: bool) -> Need:
        """Estimate a llama-server from its arguments, which name real files. Raises Unknown."""
        serving = serving_of(argv)
        found = self._parts(argv, serving, paths)
        if not discrete_gpus or not serving.gpu_layers:
            return Need(found.total_bytes)
        return Need(found.host_bytes, found.total_bytes - found.host_bytes)

    def of_running(
        self, pid: int, plan: ProcessPlan, *, discrete_gpus: bool, reserved_bytes: int | None = None
    ) -> Need:
        """Estimate a running process from its arguments. If that fails, its measured memory counts.

        The memory of a model in a shared daemon cannot be measured: it counts with `reserved_bytes`, with which it was
        admitted.
        """
        if plan.memory_bytes is not None:
            return Need(plan.memory_bytes)
        if plan.daemon_model is not None:
            return Need(reserved_bytes or 0)
        with contextlib.suppress(psutil.Error):
            process = psutil.Process(pid)
            if plan.runtime == "llamacpp":
                with contextlib.suppress(Unknown):
                    return self.of_llama_server(process.cmdline(), {}, discrete_gpus=discrete_gpus)
            return Need(process.memory_info().rss)
        return Need()

    def _parts(self, argv: list[str], serving: Serving, paths: Mapping[str, str]) -> MemoryFacts:
        model, draft, projector = (word_of(argv, *names) for names in (_MODEL, _DRAFT, _PROJECTOR))
        # A file of the plan counts even if no argument names it.
        model = model or paths.get("model", "")
        if not model:
            raise Unknown("llama-server downloads its model itself, so its size is unknown before the start")
        sets: dict[str, int] = {}
        for name, path in paths.items():
            # The other files of a set: `file-1`, `file-2`, … for the model, `draft-file-1`, … for the draft.
            if name.startswith(("file-", "draft-file-")) and path not in (model, draft, projector):
                owner = "draft" if name.startswith("draft-") else "model"
                sets[owner] = sets.get(owner, 0) + _size(Path(path))
        parts = [self._model(Path(model), sets.get("model", 0), serving)]
        if draft:
            parts.append(self._model(Path(draft), sets.get("draft", 0), serving))
        if projector:
            parts.append(projector_memory(_known_size(Path(projector))))
        for path in (*(word_of(argv, each) for each in _ADAPTERS), *_scaled(argv)):
            if path:
                parts.append(MemoryFacts(weights_bytes=_size(Path(path)), cache_bytes=0, compute_bytes=0))
        return together(parts)

    def _model(self, path: Path, rest_bytes: int, serving: Serving) -> MemoryFacts:
        size, facts = _known_size(path), self.headers.of(path)
        # The header of the first of several files does not describe the tensors of the others.
        weights = size + rest_bytes if rest_bytes else facts.weights_bytes or size
        return model_memory(facts, serving, weights_bytes=weights)


def _scaled(argv: list[str]) -> list[str]:
    """Return the paths of adapters with scales: `--lora-scaled FILE:SCALE`, as often as it is there."""
    return [value.rpartition(":")[0] for flag, value in pairwise(argv) if flag == "--lora-scaled"]


class Headers:
    """Caches the headers of local files. Thread-safe."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._known: dict[tuple[str, int, int, int], GgufFacts] = {}

    def of(self, path: Path) -> GgufFacts:
        """Read a file's header. A file that is not GGUF has no facts. Raises Unknown if it cannot be read."""
        try:
            stat = path.stat()
            identity = (str(path), stat.st_size, stat.st_mtime_ns, stat.st_ino)
            with self._lock:
                if identity in self._known:
                    return self._known[identity]
            with path.open("rb") as file:
                facts = read_header(file)
        except (GgufInvalid, NeedMoreBytes):
            return GgufFacts()
        except OSError as error:
            raise Unknown(f"{path} cannot be read: {error.strerror or error}") from error
        with self._lock:
            while len(self._known) >= _KEPT_HEADERS:
                del self._known[next(iter(self._known))]
            self._known[identity] = facts
        return facts


def _filled(argument: str, paths: Mapping[str, str]) -> str:
    for name, path in paths.items():
        argument = argument.replace(f"{{{name}}}", path)
    return argument


def _known_size(path: Path) -> int:
    size = _size(path)
    if not size:
        raise Unknown(f"{path} is not on this host")
    return size


def _size(path: Path) -> int:
    """Return the size of a file or of all files in a directory, in bytes; 0 if it does not exist."""
    try:
        if path.is_dir():
            return sum(each.stat().st_size for each in path.rglob("*") if each.is_file())
        return path.stat().st_size
    except OSError:
        return 0
