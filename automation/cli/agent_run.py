"""`herdsman agent run`: the agent that runs a host's processes, in the foreground.

Registered by `agent`. `agent_service` and `agent_doctor` read the options of the command by `run_command`.
"""

from __future__ import annotations

import ipaddress
import os
import signal
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any
from urllib.parse import urlsplit

import typer

from agent.stop_signals import STOP_SIGNALS, on_stop_signal
from automation.cli.agent_options import default_store
from automation.cli.host_arguments import check_host_name, labels_of
from automation.cli.output import complain, say

if TYPE_CHECKING:
    from agent.server.processes.engine_user import EngineUser
    from kubeapi.client import KubeClient
    from program.runtimes.host_rules import Allowance


class PlanSource(StrEnum):
    """The source of an agent's plan."""

    KUBERNETES = "kubernetes"
    HTTP = "http"


class LogFormat(StrEnum):
    """The format of log lines."""

    AUTO = "auto"
    CONSOLE = "console"
    JSON = "json"


def run(
    host: Annotated[str, typer.Option(help="Name of this host, as placements use it.")],
    store: Annotated[
        Path | None, typer.Option(help="Directory for models, logs and the agent's memory.", show_default=False)
    ] = None,
    kubeconfig: Annotated[
        str | None, typer.Option(help="Path of a kubeconfig. The default in a pod is its service account.")
    ] = None,
    namespace: Annotated[
        list[str] | None, typer.Option("--namespace", "-n", help="Namespace to watch. The default is all namespaces.")
    ] = None,
    address: Annotated[
        str | None,
        typer.Option(
            help="IP address that Services send requests to. The default is the first address that others can reach."
        ),
    ] = None,
    listen: Annotated[
        str | None,
        typer.Option(
            help="IP address on which processes listen. The default is --address, or loopback if the cluster is also "
            "on this machine. At other addresses than loopback, everybody on the network can use the processes.",
            show_default=False,
        ),
    ] = None,
    allowed_remote_hosts: Annotated[
        str,
        typer.Option(help="Private host names and CIDRs that models may come from, separated by commas."),
    ] = "",
    allowed_host_path_roots: Annotated[
        str,
        typer.Option(help="Directories that file:// URLs and absolute paths of models may be in, separated by commas."),
    ] = "",
    engine_user: Annotated[
        str | None,
        typer.Option(
            help="User that engines run as. Needs an agent that runs as root. The default is `herdsman-engine` if the "
            "agent runs as root on Linux and that user exists, otherwise the agent's user.",
            show_default=False,
        ),
    ] = None,
    allow: Annotated[
        Path | None,
        typer.Option(
            help="YAML file with the fields of a Host's spec.allow, which limit plans. Both this file and the Host "
            "object must allow a plan. Without a cluster and without this file, every plan is allowed.",
            show_default=False,
        ),
    ] = None,
    http_port: Annotated[
        int, typer.Option(help="Port of /healthz, /metrics and the API. 0 picks a free port; -1 starts no server.")
    ] = 0,
    http_address: Annotated[
        str,
        typer.Option(
            help="IP address on which the API listens; 0.0.0.0 and :: stand for all. At other addresses than loopback "
            "it uses TLS, and needs a token for all paths but /healthz.",
            show_default="loopback",
        ),
    ] = "",
    tls_cert: Annotated[
        Path | None,
        typer.Option(help="PEM file of the API's certificate; needs --tls-key. By default the agent makes one."),
    ] = None,
    tls_key: Annotated[Path | None, typer.Option(help="PEM file of the certificate's key.")] = None,
    token_file: Annotated[
        Path | None, typer.Option(help="File with the API's token; by default the agent makes one in its store.")
    ] = None,
    plan_source: Annotated[PlanSource, typer.Option(help="Source of the plan.")] = PlanSource.KUBERNETES,
    system_namespace: Annotated[str, typer.Option(help="Namespace of the host's Lease.")] = "herdsman-system",
    heartbeat: Annotated[
        float,
        typer.Option(min=0.4, max=60, help="Seconds between renewals of the Lease. The Lease lasts 2.4 times as long."),
    ] = 5.0,
    keep_processes: Annotated[
        bool,
        typer.Option(
            "--keep-processes", help="Leave processes running when the agent stops. The next agent adopts them."
        ),
    ] = False,
    label: Annotated[
        list[str] | None, typer.Option(help="Label of the host, as KEY=VALUE. Services can select hosts by labels.")
    ] = None,
    ca_file: Annotated[
        Path | None,
        typer.Option(help="PEM file with additional certificate authorities for downloads of models."),
    ] = None,
    store_size: Annotated[
        str | None,
        typer.Option(help="Limit of the models' size on disk (`200Gi`). The Host's storeSize takes precedence."),
    ] = None,
    credentials: Annotated[
        Path | None,
        typer.Option(
            help="Credentials for downloads of models, such as HF_TOKEN and AWS_ACCESS_KEY_ID: a directory with a file "
            "for each variable, or a file of NAME=VALUE lines. The default is the environment.",
            show_default=False,
        ),
    ] = None,
    secrets: Annotated[
        Path | None,
        typer.Option(
            help="Directory of files NAMESPACE/SECRET/KEY with mode 0600, one for each value that services take by "
            "secretKeyRef. Without a file, the agent reads the Secret from the cluster.",
            show_default="/etc/herdsman/secrets",
        ),
    ] = None,
    memory_budget: Annotated[
        str | None,
        typer.Option(
            help="Memory for all processes together (`24Gi`). The value in the Host object takes precedence.",
            show_default=False,
        ),
    ] = None,
    memory_fraction: Annotated[
        float | None,
        typer.Option(
            min=0,
            max=1,
            help="Memory for all processes together, as a fraction of this machine's memory.",
            show_default=False,
        ),
    ] = None,
    memory_interval: Annotated[
        float, typer.Option(min=0, help="Seconds between two checks of the memory pressure; 0 for no checks.")
    ] = 10.0,
    evict: Annotated[
        bool, typer.Option("--evict", help="Stop the least important processes while memory is critically short.")
    ] = False,
    meminfo: Annotated[Path | None, typer.Option(help="File to read instead of /proc/meminfo.", hidden=True)] = None,
    log_format: Annotated[
        LogFormat, typer.Option(help="console or json; by default console on a terminal.")
    ] = LogFormat.AUTO,
    log_level: Annotated[str, typer.Option(help="debug, info, warning or error.")] = "info",
) -> None:
    """Run this host's processes as planned, until stopped.

    SIGTERM and Ctrl-C take the endpoints out of service, then stop the processes. An agent that is killed leaves the
    processes running, and the next agent with the same --store adopts them.
    """
    # Imported here, so that other commands do not wait for it.
    from agent.processes.secret_values import FOLDER
    from agent.server.api.api_listeners import ApiSettings
    from agent.server.api.tls import TlsFailed
    from agent.server.cluster.host_lease import HostInUse
    from agent.server.host_facts import NoAddress, own_address
    from agent.server.joining.identity import identity_of
    from agent.server.main import Agent
    from agent.server.memory.budget import MemoryLimits
    from agent.server.memory.host_memory import MemorySettings
    from agent.server.processes.ports import is_free
    from agent.server.settings import AgentSettings
    from agent.server.store import StoreInUse
    from agent.sources.source_policy import SourcePolicy
    from agent.version import agent_version
    from automation.telemetry.logs import configure_logging
    from kubeapi.client import KubeClient
    from kubeapi.errors import KubeError

    check_host_name(host)
    try:
        configure_logging(log_format.value, log_level)
        published = str(ipaddress.ip_address(address)) if address else own_address()
        client = KubeClient.default(kubeconfig) if plan_source is PlanSource.KUBERNETES else None
        listening = str(ipaddress.ip_address(listen)) if listen else _where_to_listen(client, published)
        reached_at = str(ipaddress.ip_address(http_address)) if http_address else ""
    except (ValueError, NoAddress) as error:
        raise typer.BadParameter(str(error)) from None
    except KubeError as error:
        complain(str(error))
        raise typer.Exit(1) from None
    for option, own in (("--address", published), ("--listen", listening), ("--http-address", reached_at)):
        if not is_free(own, 0):
            raise typer.BadParameter(f"{option} `{own}` is not an address of this machine")
    if (tls_cert is None) != (tls_key is None):
        raise typer.BadParameter("--tls-cert and --tls-key need each other: give both or none")
    settings = AgentSettings(
        host=host,
        store=(store or default_store()).expanduser().absolute(),
        address=published,
        listen=listening,
        plan_source="http" if plan_source is PlanSource.HTTP else "kubernetes",
        namespaces=tuple(namespace or ()),
        system_namespace=system_namespace,
        heartbeat_s=heartbeat,
        api=ApiSettings(
            port=http_port,
            address=reached_at,
            tls_certificate=_absolute(tls_cert),
            tls_key=_absolute(tls_key),
            token_file=_absolute(token_file),
        ),
        keep_processes=keep_processes,
        engine_user=_engine_user(engine_user),
        allowance=_allowance(allow),
        source_policy=SourcePolicy(
            allowed_remote_hosts=_split(allowed_remote_hosts),
            allowed_host_path_roots=_split(allowed_host_path_roots),
            ca_file=str(_absolute(ca_file)) if ca_file else None,
        ),
        locate=_locate,
        labels=labels_of(label or ()),
        store_size_bytes=_size(store_size),
        credentials=_absolute(credentials),
        secrets=_absolute(secrets) or FOLDER,
        memory=MemorySettings(
            limits=MemoryLimits(_size(memory_budget, option="--memory-budget"), memory_fraction, eviction=evict),
            watch_s=memory_interval,
            meminfo=_absolute(meminfo),
        ),
        identity=identity_of(Path(kubeconfig).expanduser().absolute()) if kubeconfig else None,
    )
    try:
        running = Agent(settings, client)
        running.start()
    except (StoreInUse, HostInUse, KubeError, TlsFailed, OSError) as error:
        complain(str(error), hint=_hint(error))
        raise typer.Exit(1) from None
    on_stop_signal(running.request_stop, signals=(*STOP_SIGNALS, signal.SIGHUP))
    _print_line(f"Herdsman agent {agent_version()} is host `{host}`, process {os.getpid()}")
    _print_line(f"  processes listen on {listening}; models, logs and state are in {settings.store}")
    if client is not None:
        _print_line(f"  the plan comes from {client.server}, {', '.join(namespace or ()) or 'all namespaces'}")
    if settings.engine_user is not None:
        _print_line(f"  engines run as user {settings.engine_user.name}")
    if running.http_port is not None:
        _print_line(f"  http://127.0.0.1:{running.http_port} has /healthz, /readyz, /metrics and /v1")
        _print_line(f"  the token for /v1 is in {running.token_file}")
    if running.endpoint:
        _print_line(
            f"  other machines reach the same API at {running.endpoint}; SHA-256 of its certificate: "
            f"{running.facts().tls_fingerprint}"
        )
    why = running.wait()
    _print_line("Stopping" if not keep_processes else "Stopping; processes keep running")
    running.stop()
    if client is not None:
        client.close()
    if why:
        complain(why)
        raise typer.Exit(1)


def run_command() -> Any:
    """Return `agent run` as typer builds it, to read its options."""
    alone = typer.Typer(add_completion=False)
    alone.command("run")(run)
    return typer.main.get_command(alone)


def _where_to_listen(client: KubeClient | None, published: str) -> str:
    """Return loopback if all clients are on this machine: the cluster runs here, or there is none.

    An engine has no authentication unless the service configures it, so it listens on no more addresses than needed.
    """
    if client is None:
        return "127.0.0.1"
    name = urlsplit(client.server).hostname or ""
    try:
        loopback = ipaddress.ip_address(name).is_loopback
    except ValueError:
        loopback = name == "localhost"
    return "127.0.0.1" if loopback else published


def _size(text: str | None, *, option: str = "--store-size") -> int | None:
    from program.desired.errors import SpecInvalid
    from program.desired.quantities import bytes_of

    try:
        return bytes_of(text, field=option)
    except SpecInvalid as error:
        raise typer.BadParameter(str(error)) from None


def _allowance(path: Path | None) -> Allowance | None:
    """Read the file of --allow by the schema of a Host's `spec.allow`."""
    if path is None:
        return None
    import yaml

    from kubeapi.yaml_text import load
    from program.desired.errors import SpecInvalid
    from program.dialects.crds.reading import read, unknown_fields
    from program.dialects.hosts.schema import AllowSpec
    from program.runtimes.host_rules import allowance_of

    try:
        said = load(path.expanduser().read_text()) or {}
        spec = read(AllowSpec, said, field="allow")
        strange = [field for field, _ in unknown_fields(spec, field="allow")]
    except (OSError, ValueError, yaml.YAMLError, SpecInvalid) as error:
        raise typer.BadParameter(f"--allow {path}: {error}") from None
    if strange:
        raise typer.BadParameter(f"--allow {path}: unknown fields: {', '.join(strange)}")
    return allowance_of(said)


def _engine_user(name: str | None) -> EngineUser | None:
    from agent.server.processes.engine_user import EngineUserWrong, engine_user, usual_engine_user

    try:
        return engine_user(name) if name is not None else usual_engine_user()
    except EngineUserWrong as error:
        raise typer.BadParameter(f"--engine-user: {error}") from None


def _absolute(path: Path | None) -> Path | None:
    return path.expanduser().absolute() if path is not None else None


def _print_line(line: str) -> None:
    say(line)


def _hint(error: Exception) -> str:
    from kubeapi.errors import Forbidden

    if isinstance(error, Forbidden):
        return "the agent needs HostProcesses, Services, EndpointSlices, and Leases in the system namespace"
    return ""


def _split(value: str) -> tuple[str, ...]:
    return tuple(part.strip() for part in value.split(",") if part.strip())


def _locate(name: str) -> Path | None:
    from tools.toolchain import ToolMissing, locate

    try:
        return locate(name)
    except ToolMissing:
        return None
