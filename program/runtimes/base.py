"""The interface of all engines. The other modules of this package implement it; `components` calls it.

Ports, images, container names, probe budgets and the order of flags are LLMKube's, so that pods of its users stay
unchanged after a migration.
"""

from __future__ import annotations

from typing import Literal, Protocol

from kubeapi.json_types import Json
from program.desired.base import FrozenModel
from program.desired.engines import SecretKey
from program.desired.model import DesiredModel, ModelFormat
from program.desired.service import DesiredService
from program.runtimes.flags import mentions

RERANK_FLAGS = ("--reranking", "--rerank")
EMBEDDING_FLAGS = ("--embedding", "--embeddings", "--is-embedding")
"""Arguments of llama-server and SGLang by which a user switches chat off."""
STARTUP_FAILURES = 180
"""Probe failures, 10 s apart: after half an hour of loading the weights, the kubelet restarts the container."""


class Probes(FrozenModel):
    """A container's three probes, in Kubernetes' format."""

    startup: Json
    liveness: Json
    readiness: Json


class CompletionRequest(FrozenModel):
    """The smallest request that makes an engine compute. An answer proves that it serves, not only that it listens."""

    path: str
    body: Json
    """Body of the POST, as JSON. It names no model: every engine here then uses the model that it serves. If users
    choose the engine's release and its arguments name the model, the body names it too, because older releases of vLLM
    require it.
    """


class IdleProbe(FrozenModel):
    """How to check with one GET whether an engine works on a request. Any other answer than described means unknown."""

    path: str
    kind: Literal["slots", "gauge", "status"]
    """slots: a JSON list whose items have `is_processing`. gauge: a metric in Prometheus' text format. status: 2xx is
    idle, any other answer is busy.
    """
    gauge: str = ""
    """For kind gauge: the metric whose samples add up to the number of running requests."""


class ProgressMetrics(FrozenModel):
    """The metrics at GET /metrics that distinguish an engine that computes from one that hangs."""

    generated_tokens: str
    """Counter that grows while tokens are generated."""
    running_requests: str
    """Gauge of the running requests."""


class Runtime(Protocol):
    """One inference engine."""

    name: str
    """Value of `spec.runtime` and of the runtime label."""
    container_name: str
    default_port: int
    """The port that the engine listens on by default."""
    command: tuple[str, ...]
    """The container's default command; empty uses the image's entrypoint."""
    needs_model_init: bool
    """The pod fetches the weights before the engine starts. False: the engine fetches them or the image
    contains them.
    """
    takes_port: bool
    """An argument can set the engine's port. False: it listens on `default_port`, whatever port clients use."""
    serves_metrics: bool
    """The engine answers GET /metrics in Prometheus' format."""
    default_hpa_metric: str
    """The pods' metric that an autoscaler uses if the user names none; empty if the engine has none."""
    service_links: bool
    """Kubernetes may add `<SERVICE>_PORT=tcp://…` to the environment. False if the engine reads such variables."""
    api_key_env: str
    """The variable that the engine reads its API key from; empty if it has none, and then a key has no effect."""
    name_flags: tuple[str, ...]
    """Spellings of the argument that sets the model's name for clients; empty if the engine has no such argument."""
    drains: bool
    """A pod waits for the end of its requests before the engine is stopped. The engine would drop them, or would wait
    no longer than Kubernetes' 30 s. False if the user supplies the image, whose behaviour is unknown.
    """

    def default_image(self, desired: DesiredService) -> str | None:
        """Return the image for the service's accelerator; None if the user must name one."""
        ...

    def argv(
        self, desired: DesiredService, *, model_path: str, port: int, host: str, draft_path: str = ""
    ) -> list[str]:
        """Return the engine's arguments, without the command.

        `model_path` is the weights' file or directory, and the first file of several; `draft_path` is the same for
        `desired.draft`. `desired.bind_address` overrides `host`.
        """
        ...

    def env(self, desired: DesiredService) -> list[Json]:
        """Return the engine's environment as Kubernetes EnvVars. The user's variables follow these."""
        ...

    def completion(self, desired: DesiredService) -> CompletionRequest | None:
        """Return the request that proves a replica; None if there is none, or if it would need the API key."""
        ...

    def idle_probe(self, desired: DesiredService) -> IdleProbe | None:
        """Return how to check whether a replica is idle; None if there is no way."""
        ...

    def progress(self, desired: DesiredService) -> ProgressMetrics | None:
        """Return the metrics that show a replica's progress; None if there are none, or if they need the API key."""
        ...

    def probes(self, port: int) -> Probes:
        """Return the probes for a container that listens on `port`."""
        ...


def small_completion(mode: Literal["chat", "embedding", "rerank"]) -> CompletionRequest:
    """Return a request for one token, or its equivalent in the other modes, at the paths of OpenAI's API."""
    match mode:
        case "chat":
            hello = {"role": "user", "content": "Hi"}
            return CompletionRequest(
                path="/v1/chat/completions", body={"messages": [hello], "max_tokens": 1, "temperature": 0}
            )
        case "embedding":
            return CompletionRequest(path="/v1/embeddings", body={"input": "Hi"})
        case "rerank":
            return CompletionRequest(path="/v1/rerank", body={"query": "Hi", "documents": ["Hello"]})


def http_probes(path: str, port: int) -> Probes:
    """Return probes that send GET `path`."""
    return _probes({"httpGet": {"path": path, "port": port}})


def tcp_probes(port: int) -> Probes:
    """Return probes that only connect, for servers without a known health path."""
    return _probes({"tcpSocket": {"port": port}})


def exec_probes(*command: str) -> Probes:
    """Return probes that run a command in the container, for a state that no HTTP path shows."""
    return _probes({"exec": {"command": list(command)}})


def _probes(handler: Json) -> Probes:
    return Probes(
        startup={**handler, "periodSeconds": 10, "timeoutSeconds": 5, "failureThreshold": STARTUP_FAILURES},
        liveness={**handler, "periodSeconds": 15, "timeoutSeconds": 5, "failureThreshold": 3},
        readiness={**handler, "periodSeconds": 10, "timeoutSeconds": 5, "failureThreshold": 3},
    )


def served_mode(desired: DesiredService) -> Literal["chat", "embedding", "rerank"]:
    """Return the kind of requests that the engine answers, from `spec.mode`, the arguments or the endpoint's path."""
    if desired.mode != "chat":
        return desired.mode
    path, own = desired.endpoint.path.rstrip("/"), getattr(desired.engine, "extra_args", ())
    if path.endswith(("/rerank", "/reranking")) or mentions(own, *RERANK_FLAGS):
        return "rerank"
    if path.endswith(("/embeddings", "/embedding")) or mentions(own, *EMBEDDING_FLAGS):
        return "embedding"
    return "chat"


def named_completion(desired: DesiredService) -> CompletionRequest:
    """Return a request for one token, or its equivalent.

    In pods that a user or preset describes, it names the model.
    """
    request = small_completion(served_mode(desired))
    if desired.workloads is None or not desired.served_name:
        return request
    return request.model_copy(update={"body": {"model": desired.served_name, **request.body}})


def served_name_option(desired: DesiredService, flags: tuple[str, ...]) -> str:
    """Return the service's name for its model; empty if the user's arguments set one with `flags`."""
    return "" if mentions(getattr(desired.engine, "extra_args", ()), *flags) else desired.served_name


def set_directory(model: DesiredModel, model_path: str) -> str:
    """Return the directory of several files. `model_path` is that directory or the first file."""
    first = f"/{model.files[0]}" if model.files else ""
    return model_path.removesuffix(first) if first else model_path.rpartition("/")[0]


def weights_path(model: DesiredModel, model_path: str) -> str:
    """Return the path to open: a GGUF file, or the first of several; for several files of other formats the
    directory.
    """
    return set_directory(model, model_path) if model.files and model.format is not ModelFormat.GGUF else model_path


def secret_env(name: str, secret: SecretKey | None) -> list[Json]:
    """Return a variable that the kubelet fills from a Secret; an empty list without a Secret."""
    if secret is None:
        return []
    reference: Json = {"name": secret.name, "key": secret.key}
    if secret.optional is not None:
        reference["optional"] = secret.optional
    return [{"name": name, "valueFrom": {"secretKeyRef": reference}}]


def option(flag: str, value: object | None) -> list[str]:
    """Return `[flag, value]`; an empty list for None and the empty string."""
    return [] if value is None or value == "" else [flag, str(value)]


def positive(flag: str, value: int | None) -> list[str]:
    """Return `[flag, value]` for a number above zero.

    For zero and None return an empty list, and the engine chooses.
    """
    return [flag, str(value)] if value is not None and value > 0 else []


def switch(flag: str, on: bool | None) -> list[str]:
    """Return `[flag]` if `on` is True, else an empty list."""
    return [flag] if on else []
