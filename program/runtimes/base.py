"""What every engine answers about itself; implemented by the modules beside it, asked by `components`.

Ports, images, container names, probe budgets and flag order are LLMKube's, so that its users' pods stay as they are.
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
"""Arguments of llama-server and SGLang by which a user turns chat off."""
STARTUP_FAILURES = 180
"""Times 10 s: half an hour to load the weights before the kubelet gives up."""


class Probes(FrozenModel):
    """A container's three probes, each as Kubernetes writes it."""

    startup: Json
    liveness: Json
    readiness: Json


class CompletionRequest(FrozenModel):
    """The smallest request that makes an engine compute: proof that it serves, and not only listens."""

    path: str
    body: Json
    """JSON of the POST. It names no model: every engine here then takes the one that it serves. Where users choose the
    engine's release, and its arguments name the model, the request names it too: older releases of vLLM require it."""


class IdleProbe(FrozenModel):
    """How to learn whether an engine works on a request, by one GET; any answer but these means unknown."""

    path: str
    kind: Literal["slots", "gauge", "status"]
    """slots: a JSON list whose members say `is_processing`. gauge: a metric in Prometheus' text. status: 2xx is idle,
    any other answer busy."""
    gauge: str = ""
    """For kind gauge: the metric whose samples add up to the requests in flight."""


class ProgressMetrics(FrozenModel):
    """The metrics at GET /metrics that tell an engine that computes from one that hangs."""

    generated_tokens: str
    """Counter that moves while tokens are generated."""
    running_requests: str
    """Gauge of requests in work."""


class Runtime(Protocol):
    """One inference engine."""

    name: str
    """Value of `spec.runtime` and of the runtime label."""
    container_name: str
    default_port: int
    """Where the engine listens unless told otherwise."""
    command: tuple[str, ...]
    """The container's command unless the user gives one; empty leaves the image's entrypoint."""
    needs_model_init: bool
    """The pod puts the weights in place before the engine starts; False: the engine or the image brings them."""
    takes_port: bool
    """The engine's port can be set by an argument. False: it listens on `default_port`, whatever clients use."""
    serves_metrics: bool
    """The engine answers GET /metrics in Prometheus' format."""
    default_hpa_metric: str
    """The pods' metric that an autoscaler follows when the user names none; empty where the engine has none."""
    service_links: bool
    """Kubernetes may add `<SERVICE>_PORT=tcp://…` to the environment; False where the engine reads such names."""
    api_key_env: str
    """The variable that the engine takes its API key from; empty where it has none, and a key has no effect."""
    name_flags: tuple[str, ...]
    """Spellings of the argument that gives the model its name for clients; empty where the engine takes none."""
    drains: bool
    """A pod waits until its requests have ended before the engine is told to stop. The engine would drop them, or its
    own patience ends with Kubernetes' 30 seconds. False: the image is the user's, and nothing is known of it."""

    def default_image(self, desired: DesiredService) -> str | None:
        """Name the image for the service's accelerator; None when the user must give one."""
        ...

    def argv(
        self, desired: DesiredService, *, model_path: str, port: int, host: str, draft_path: str = ""
    ) -> list[str]:
        """Build the engine's arguments (without the command).

        `model_path` is the weights' file or directory, of a set of files the first; `draft_path` the same of
        `desired.draft`. `host` holds unless `desired.bind_address` says otherwise.
        """
        ...

    def env(self, desired: DesiredService) -> list[Json]:
        """List the engine's own environment, as Kubernetes EnvVars; the user's variables come after these."""
        ...

    def completion(self, desired: DesiredService) -> CompletionRequest | None:
        """Return the request that proves a replica; None where none is known, or where it would need the API key."""
        ...

    def idle_probe(self, desired: DesiredService) -> IdleProbe | None:
        """Return how to ask whether a replica is idle; None where it cannot be asked."""
        ...

    def progress(self, desired: DesiredService) -> ProgressMetrics | None:
        """Name the metrics that show a replica's progress; None where there are none, or the API key is needed."""
        ...

    def probes(self, port: int) -> Probes:
        """Return the probes for a container that listens on `port`."""
        ...


def small_completion(mode: Literal["chat", "embedding", "rerank"]) -> CompletionRequest:
    """Ask for one token, or for what takes its place in the other modes, at the paths that OpenAI's API gave them."""
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
    """Ask for `path` over HTTP."""
    return _probes({"httpGet": {"path": path, "port": port}})


def tcp_probes(port: int) -> Probes:
    """Only connect: for servers of which no health path is known."""
    return _probes({"tcpSocket": {"port": port}})


def exec_probes(*command: str) -> Probes:
    """Run a command in the container: for what no answer over HTTP tells."""
    return _probes({"exec": {"command": list(command)}})


def _probes(handler: Json) -> Probes:
    return Probes(
        startup={**handler, "periodSeconds": 10, "timeoutSeconds": 5, "failureThreshold": STARTUP_FAILURES},
        liveness={**handler, "periodSeconds": 15, "timeoutSeconds": 5, "failureThreshold": 3},
        readiness={**handler, "periodSeconds": 10, "timeoutSeconds": 5, "failureThreshold": 3},
    )


def served_mode(desired: DesiredService) -> Literal["chat", "embedding", "rerank"]:
    """Return the kind of requests that the engine answers: by `spec.mode`, arguments, or the endpoint's path."""
    if desired.mode != "chat":
        return desired.mode
    path, own = desired.endpoint.path.rstrip("/"), getattr(desired.engine, "extra_args", ())
    if path.endswith(("/rerank", "/reranking")) or mentions(own, *RERANK_FLAGS):
        return "rerank"
    if path.endswith(("/embeddings", "/embedding")) or mentions(own, *EMBEDDING_FLAGS):
        return "embedding"
    return "chat"


def named_completion(desired: DesiredService) -> CompletionRequest:
    """Return a request for one token, or its equivalent; it names the model in pods that a user or preset writes."""
    request = small_completion(served_mode(desired))
    if desired.workloads is None or not desired.served_name:
        return request
    return request.model_copy(update={"body": {"model": desired.served_name, **request.body}})


def served_name_option(desired: DesiredService, flags: tuple[str, ...]) -> str:
    """Return the name that a service gives its model; empty where its own arguments give one by `flags`."""
    return "" if mentions(getattr(desired.engine, "extra_args", ()), *flags) else desired.served_name


def set_directory(model: DesiredModel, model_path: str) -> str:
    """Return the directory of a set of files, where `model_path` is that directory or the set's first file."""
    first = f"/{model.files[0]}" if model.files else ""
    return model_path.removesuffix(first) if first else model_path.rpartition("/")[0]


def weights_path(model: DesiredModel, model_path: str) -> str:
    """Return what to open: a GGUF file, also as the first of a set, and of other formats' sets the directory."""
    return set_directory(model, model_path) if model.files and model.format is not ModelFormat.GGUF else model_path


def secret_env(name: str, secret: SecretKey | None) -> list[Json]:
    """Return a variable that the kubelet fills from a Secret; nothing without a Secret."""
    if secret is None:
        return []
    reference: Json = {"name": secret.name, "key": secret.key}
    if secret.optional is not None:
        reference["optional"] = secret.optional
    return [{"name": name, "valueFrom": {"secretKeyRef": reference}}]


def option(flag: str, value: object | None) -> list[str]:
    """Return `[flag, value]`, or nothing for None and the empty string."""
    return [] if value is None or value == "" else [flag, str(value)]


def positive(flag: str, value: int | None) -> list[str]:
    """Return `[flag, value]` for a number above zero: zero and None leave the choice to the engine."""
    return [flag, str(value)] if value is not None and value > 0 else []


def switch(flag: str, on: bool | None) -> list[str]:
    """Return `[flag]` when switched on."""
    return [flag] if on else []
