"""What every engine answers about itself; implemented by the modules beside it, asked by `components`.

Ports, images, container names, probe budgets and flag order are LLMKube's, so that its users' pods stay as they are.
"""

from __future__ import annotations

from typing import Protocol

from program.desired.base import Desired, JsonObject
from program.desired.engines import SecretKey
from program.desired.service import DesiredService

STARTUP_FAILURES = 180
"""Times 10 s: half an hour to load the weights before the kubelet gives up."""


class Probes(Desired):
    """A container's three probes, each as Kubernetes writes it."""

    startup: JsonObject
    liveness: JsonObject
    readiness: JsonObject


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
    """The pods' metric that an autoscaler follows when the user names none."""
    service_links: bool
    """Kubernetes may add `<SERVICE>_PORT=tcp://…` to the environment; False where the engine reads such names."""

    def default_image(self, desired: DesiredService) -> str | None:
        """Name the image for the service's accelerator; None when the user must give one."""
        ...

    def argv(self, desired: DesiredService, *, model_path: str, port: int, host: str) -> list[str]:
        """Build the engine's arguments (without the command): `model_path` is the weights' file or directory."""
        ...

    def env(self, desired: DesiredService) -> list[JsonObject]:
        """List the engine's own environment, as Kubernetes EnvVars; the user's variables come after these."""
        ...

    def probes(self, port: int) -> Probes:
        """Return the probes for a container that listens on `port`."""
        ...


def http_probes(path: str, port: int) -> Probes:
    """Ask for `path` over HTTP."""
    return _probes({"httpGet": {"path": path, "port": port}})


def tcp_probes(port: int) -> Probes:
    """Only connect: for servers of which no health path is known."""
    return _probes({"tcpSocket": {"port": port}})


def _probes(handler: JsonObject) -> Probes:
    return Probes(
        startup={**handler, "periodSeconds": 10, "timeoutSeconds": 5, "failureThreshold": STARTUP_FAILURES},
        liveness={**handler, "periodSeconds": 15, "timeoutSeconds": 5, "failureThreshold": 3},
        readiness={**handler, "periodSeconds": 10, "timeoutSeconds": 5, "failureThreshold": 3},
    )


def secret_env(name: str, secret: SecretKey | None) -> list[JsonObject]:
    """Let the kubelet fill `name` from a Secret; nothing when there is none."""
    if secret is None:
        return []
    reference: JsonObject = {"name": secret.name, "key": secret.key}
    if secret.optional is not None:
        reference["optional"] = secret.optional
    return [{"name": name, "valueFrom": {"secretKeyRef": reference}}]


def mentions(arguments: tuple[str, ...], flag: str) -> bool:
    """Tell whether the user's own arguments set `flag`, as `--flag value` or `--flag=value`."""
    return any(argument == flag or argument.startswith(f"{flag}=") for argument in arguments)


def option(flag: str, value: object | None) -> list[str]:
    """Return `[flag, value]`, or nothing for None and the empty string."""
    return [] if value is None or value == "" else [flag, str(value)]


def positive(flag: str, value: int | None) -> list[str]:
    """Return `[flag, value]` for a number above zero: zero and None leave the choice to the engine."""
    return [flag, str(value)] if value is not None and value > 0 else []


def switch(flag: str, on: bool | None) -> list[str]:
    """Return `[flag]` when switched on."""
    return [flag] if on else []
