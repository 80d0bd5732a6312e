"""What is known of each engine where the plan does not say it. Pure but for `performance_cores`.

Called by `agent.server` (`processes.drain`, `launching`, the metrics) and `agent.client.ssh`.
"""

from __future__ import annotations

import functools
import subprocess
import sys

from agent.contract import IdleQuestion, ProcessPlan

SHARED = ("ollama", "omlx")
"""Runtimes whose one daemon serves the models of several services."""

_IDLE = {
    "llamacpp": IdleQuestion(path="/slots", kind="slots"),
    "vllm": IdleQuestion(path="/metrics", kind="gauge", gauge="vllm:num_requests_running"),
}
_IDLE_OTHERWISE = {
    "llamacpp": IdleQuestion(path="/metrics", kind="gauge", gauge="llamacpp:requests_processing"),
}
"""Where the first question is not answered: llama-server's slots can be switched off."""
_METRICS = {"llamacpp": "/metrics", "vllm": "/metrics"}


def idle_questions(plan: ProcessPlan) -> tuple[IdleQuestion, ...]:
    """Say how to ask whether a process works on a request: the questions in turn, until one is answered."""
    if plan.daemon_model is not None:
        return ()  # a shared daemon is busy with others' requests too
    if plan.idle is not None:
        return (plan.idle,)
    known = (_IDLE.get(plan.runtime), _IDLE_OTHERWISE.get(plan.runtime))
    return tuple(question for question in known if question is not None)


def metrics_path(plan: ProcessPlan) -> str | None:
    """Give the path of the engine's own metrics in Prometheus' text; None where it has none."""
    return plan.metrics_path or _METRICS.get(plan.runtime)


def with_threads(arguments: list[str], cores: int | None) -> list[str]:
    """Let llama-server compute on a Mac's fast cores alone, unless the arguments choose themselves."""
    chosen = any(each in ("-t", "--threads") or each.startswith("--threads=") for each in arguments)
    return arguments if cores is None or chosen else [*arguments, "--threads", str(cores)]


@functools.cache
def performance_cores() -> int | None:
    """Count the fast cores of an Apple processor; None on any other machine."""
    if sys.platform != "darwin":
        return None
    try:
        asked = subprocess.run(
            ["/usr/sbin/sysctl", "-n", "hw.perflevel0.physicalcpu"], capture_output=True, timeout=5.0, check=False
        )
    except (OSError, subprocess.TimeoutExpired):
        return None
    text = asked.stdout.decode("ascii", "replace").strip()
    return int(text) if text.isdigit() and int(text) > 0 else None
