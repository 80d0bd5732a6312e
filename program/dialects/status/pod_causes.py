"""Finds why a pod does not serve, from the reports of kubelet, scheduler and engine. Pure.

A cause follows from the container's reason and its last log lines. A restarted container keeps its cause until the pod
is ready, so that the status does not flap between a crash and the next start.
"""

from __future__ import annotations

import re
from collections.abc import Iterable

from program.desired.base import FrozenModel
from program.desired.facts import MemoryFacts, PodFacts
from program.dialects.status.conditions import MODEL_TRANSFER_REASONS, Reason

_IMAGE_REASONS = frozenset(
    {
        "ErrImagePull",
        "ImagePullBackOff",
        "InvalidImageName",
        "ErrImageNeverPull",
        "ImageInspectError",
        "RegistryUnavailable",
        "SignatureValidationFailed",
    }
)
_ENDED = frozenset({"CrashLoopBackOff", "Error", "Completed", "OOMKilled", "ContainerCannotRun", "StartError"})
_UNHEALTHY = frozenset({"Unhealthy", "ProbesFailing"})
_FETCHERS = ("download", "model-loader", "storage-initializer", "modelcar")
"""Parts of the names of init containers that fetch weights: Herdsman's and LLMKube's, llmaz's, KServe's."""
_KILLED = frozenset({137, 143})
"""Exit codes after SIGKILL and SIGTERM, with which the kubelet ends a container that fails its probes."""

# Messages of CUDA, the NVIDIA container runtime and HIP if the node's driver is older than the image needs.
_DRIVER = re.compile(
    r"driver version is insufficient|forward compatibility was attempted|insufficient ?driver"
    r"|driver on your system is too old|unsupported display driver / cuda driver combination"
    r"|nvidia-container-cli: requirement error|unsatisfied condition: cuda|ROCk module is NOT loaded",
    re.IGNORECASE,
)
_ROCM = re.compile(r"\bhip|rocm|ROCk", re.IGNORECASE)

# LLMKube's own script prints curl's messages. Pods of its users run this script until their next rollout.
_CURL = (
    (re.compile(r"returned error: 40[13]\b|AccessDenied|SignatureDoesNotMatch"), Reason.MODEL_SOURCE_UNAUTHORIZED),
    (re.compile(r"returned error: 4(?:04|10)\b|NoSuchKey|NoSuchBucket"), Reason.MODEL_SOURCE_NOT_FOUND),
    (re.compile(r"No space left|curl: \(63\)"), Reason.MODEL_TRANSFER_OUT_OF_SPACE),
    (re.compile(r"curl: \((?:35|51|58|60|77|83|91)\)|certificate"), Reason.MODEL_SOURCE_UNTRUSTED),
    (re.compile(r"curl: \((?:5|6|7|28|52|97)\)|[Cc]ould not resolve host"), Reason.MODEL_SOURCE_UNREACHABLE),
    (re.compile(r"Permission denied|Read-only file system"), Reason.MODEL_CACHE_NOT_WRITABLE),
    (re.compile(r"curl: \((?:1|3)\)"), Reason.MODEL_SOURCE_INVALID),
)
_NAMED = re.compile(r"^\s*(?P<reason>Model[A-Za-z]+): (?P<text>.+)$", re.MULTILINE)

_RANK = (
    Reason.NODE_LOST,
    Reason.DRIVER_TOO_OLD,
    Reason.OUT_OF_MEMORY,
    *sorted(MODEL_TRANSFER_REASONS),
    Reason.IMAGE_PULL_FAILED,
    Reason.CRASH_LOOPING,
    Reason.PROBES_FAILING,
    Reason.POD_FAILING,
    Reason.COMPLETION_FAILED,
)


class Cause(FrozenModel):
    """Why one pod does not serve."""

    reason: Reason
    pod: str
    message: str
    """For people, without the pod's name."""
    terminal: bool = False
    """Only an edit of the service helps."""

    @property
    def text(self) -> str:
        return f"pod {self.pod}: {self.message}"


def worst_cause(pods: Iterable[PodFacts], memory: MemoryFacts | None) -> Cause | None:
    """Return the most important cause of missing replicas. It does not depend on the order of the pods."""
    causes = [cause for pod in pods if (cause := cause_of(pod, memory)) is not None]
    return min(causes, key=lambda cause: (_RANK.index(cause.reason), cause.pod), default=None)


def cause_of(pod: PodFacts, memory: MemoryFacts | None = None) -> Cause | None:
    """Return why this pod does not serve; None while it serves, starts, waits for the scheduler, or is deleted."""
    if pod.leaving:
        return None
    if pod.node_lost:
        # All other facts about the pod are from its kubelet before the loss.
        return _cause(pod, Reason.NODE_LOST, f"its node {pod.node} is lost: {pod.node_lost}")
    if pod.ready:
        if pod.proof != "failed":
            return None
        said = f": {pod.proof_message}" if pod.proof_message else ""
        return _cause(pod, Reason.COMPLETION_FAILED, f"it is healthy but answers no completion{said}")
    where = f"container {pod.container}" if pod.container else "it"
    words = pod.waiting_message.strip()
    if pod.waiting_reason in _IMAGE_REASONS:
        image = f" {pod.image}" if pod.image else ""
        message = f"{where}: its image{image} cannot be pulled: {_said(pod)}"
        return _cause(pod, Reason.IMAGE_PULL_FAILED, message, terminal=pod.waiting_reason == "InvalidImageName")
    if not _has_ended(pod):
        if pod.waiting_reason in _UNHEALTHY:
            return _cause(pod, Reason.PROBES_FAILING, f"{where} does not answer its probes: {_said(pod)}")
        if pod.waiting_reason or pod.phase == "Failed":
            return _cause(pod, Reason.POD_FAILING, f"{where}: {_said(pod)}")
        return None
    if pod.oom_killed or pod.waiting_reason == "OOMKilled":
        return _cause(pod, Reason.OUT_OF_MEMORY, _out_of_memory(pod, where, memory))
    if fetches_model(pod):
        reason, told = transfer_failure(words)
        return _cause(pod, reason, f"{where} cannot fetch the model: {told or _said(pod)}{_restarts(pod)}")
    if _DRIVER.search(words):
        driver = "ROCm" if _ROCM.search(words) else "NVIDIA"
        message = f"{where}: the node's {driver} driver is too old for the image: {_last_line(words, _DRIVER)}"
        return _cause(pod, Reason.DRIVER_TOO_OLD, message)
    if pod.exit_code in _KILLED and pod.waiting_reason in ("", "CrashLoopBackOff", "Error"):
        message = f"{where} was killed{_restarts(pod)}, as the kubelet does when probes fail{_end(pod)}"
        return _cause(pod, Reason.PROBES_FAILING, message)
    return _cause(pod, Reason.CRASH_LOOPING, f"{where} exits{_restarts(pod)}{_end(pod)}")


def fetches_model(pod: PodFacts) -> bool:
    """Return whether the pod waits for an init container that fetches a model, by the container's name."""
    return pod.init and any(word in pod.container for word in _FETCHERS)


def transfer_failure(words: str) -> tuple[Reason, str]:
    """Return the class of a failed fetch and a message for people, from the container's last log lines."""
    for found in reversed(list(_NAMED.finditer(words))):
        if found["reason"] in MODEL_TRANSFER_REASONS:
            return Reason(found["reason"]), found["text"].strip()
    for pattern, reason in _CURL:
        if pattern.search(words):
            return reason, _last_line(words, pattern)
    return Reason.MODEL_TRANSFER_FAILED, words.rsplit("\n", 1)[-1].strip()


def gib(size_bytes: int) -> str:
    """Format an amount of memory for people: `512 MiB`, `5.1 GiB`."""
    return f"{size_bytes / (1 << 20):.0f} MiB" if size_bytes < 1 << 30 else f"{size_bytes / (1 << 30):.1f} GiB"


def _cause(pod: PodFacts, reason: Reason, message: str, *, terminal: bool = False) -> Cause:
    return Cause(reason=reason, pod=pod.name, message=message, terminal=terminal)


def _has_ended(pod: PodFacts) -> bool:
    """Return whether a container of the pod ended: it waits for its restart, or runs again and is not ready yet."""
    if pod.waiting_reason:
        return pod.waiting_reason in _ENDED
    return pod.restarts > 0 and (pod.oom_killed or pod.exit_code is not None)


def _said(pod: PodFacts) -> str:
    parts = [part for part in (pod.waiting_reason, pod.waiting_message.strip()) if part]
    return ": ".join(parts) or f"the pod is {pod.phase}"


def _restarts(pod: PodFacts) -> str:
    if not pod.restarts:
        return ""
    return f" ({pod.restarts} restart{'s' if pod.restarts > 1 else ''})"


def _end(pod: PodFacts) -> str:
    code = f" with exit code {pod.exit_code}" if pod.exit_code is not None else ""
    words = pod.waiting_message.strip()
    return f"{code}; its last output: {words}" if words else code


def _out_of_memory(pod: PodFacts, where: str, memory: MemoryFacts | None) -> str:
    asked = pod.requests.get("memory") or (gib(memory.asked_bytes) if memory and memory.asked_bytes else "")
    message = f"{where} was killed because it ran out of memory{_restarts(pod)}"
    if asked:
        message += f"; it requests {asked}"
    if memory is not None and not pod.init:
        message += f"; the engine is estimated to need {gib(memory.total_bytes)}"
    return f"{message}: raise spec.resources.memory, or lower spec.contextSize or spec.parallelSlots"


def _last_line(words: str, pattern: re.Pattern[str]) -> str:
    """Return the last matching line, else the last line."""
    lines = [line.strip() for line in words.splitlines() if line.strip()]
    return next((line for line in reversed(lines) if pattern.search(line)), lines[-1] if lines else "")
