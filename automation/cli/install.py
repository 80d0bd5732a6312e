"""`herdsman install`: install Herdsman into a cluster, change its options, or upgrade it."""

from __future__ import annotations

import contextlib
import pathlib
import sys
from collections.abc import Iterable, Iterator
from dataclasses import asdict, dataclass
from typing import Annotated, Any

import typer

from automation.cli.dry_run import DryRun, OlderPreview
from automation.cli.output import OutputFormat, complain, print_json, print_table, say
from automation.engine.port import Change, EngineFailed
from automation.install.comparison import Compared
from automation.install.installer import Comparison, Installer, InstallRefused, TakeOverNeeded
from automation.settings import SYSTEM_NAMESPACE, default_state
from kubeapi.client import KubeClient
from kubeapi.errors import KubeError
from tools.toolchain import ToolMissing

MOST_FIELDS = 6
_DONE = {"create": "created", "update": "changed", "replace": "replaced", "delete": "deleted"}


@dataclass(frozen=True)
class Connected:
    """A cluster, and the installer for it."""

    client: KubeClient
    installer: Installer


def connected(kubeconfig: str | None) -> Connected:
    """Connect. The engine's state is on this machine, in a directory beside the loop's."""
    client = KubeClient.default(kubeconfig)
    return Connected(
        client, Installer(client, pathlib.Path(default_state().removeprefix("file://")).parent / "install")
    )


@contextlib.contextmanager
def exit_on_error() -> Iterator[None]:
    """Print the error and what to do, and end with exit code 1."""
    try:
        yield
    except TakeOverNeeded as error:
        complain(str(error), hint="`--dry-run` shows the changes; add `--take-over` to apply them")
    except InstallRefused as error:
        complain(str(error))
    except ToolMissing as error:
        complain(str(error), hint=error.remedy)
    except (KubeError, EngineFailed) as error:
        complain(str(error), hint="`herdsman doctor` checks the cluster and your permissions in it")
    else:
        return
    raise typer.Exit(1)


def show_comparison(comparison: Comparison, output: OutputFormat) -> None:
    """Print the changes, field by field, with the owner of each object that is not Herdsman's."""
    if output is OutputFormat.JSON:
        print_json([_as_json(each) for each in comparison.changed])
        return
    rows = [(_DONE[each.change.op], each.change.kind, _name(each), _detail(each)) for each in comparison.changed]
    if rows:
        print_table(("WOULD BE", "KIND", "NAME", "WHAT"), rows)
    same = len(comparison.all) - len(rows)
    say(f"{len(rows)} objects would change, {same} are unchanged.")
    if comparison.foreign:
        sys.stdout.flush()
        say("Without --take-over, `install` refuses to change objects that another manager owns.", err=True)


def _as_json(each: Compared) -> dict[str, object]:
    change = asdict(each.change)
    keys = ("op", "kind", "name", "fields", "refused")
    return {**{key: change[key] for key in keys}, "namespace": each.namespace, "holder": each.holder}


def _name(each: Compared) -> str:
    return f"{each.namespace}/{each.change.name}" if each.namespace else each.change.name


def _detail(each: Compared) -> str:
    fields = each.change.fields
    words = ", ".join(fields[:MOST_FIELDS])
    if len(fields) > MOST_FIELDS:
        words += f" and {len(fields) - MOST_FIELDS} more"
    if each.change.refused:
        words = f"refused: {each.change.refused}"
    return f"[held by {each.holder}] {words}" if each.holder else words


def show_changes(changes: Iterable[Change], output: OutputFormat) -> None:
    """Print the changes that were made."""
    done = list(changes)
    if output is OutputFormat.JSON:
        keys = ("op", "kind", "name", "details")
        print_json([{key: value for key, value in asdict(change).items() if key in keys} for change in done])
        return
    for change in done:
        told = ", ".join(change.details[:MOST_FIELDS])
        say(f"{_DONE[change.op]} {change.kind} {change.name}" + (f": {told}" if told else ""))
    if not done:
        say("Nothing to change: all objects are up to date.")


EXIT_CHANGES = 2


def install(
    dry_run: DryRun = False,
    preview: OlderPreview = False,
    render: Annotated[bool, typer.Option("--render", help="Only print the objects as YAML. Needs no cluster.")] = False,
    take_over: Annotated[
        bool, typer.Option("--take-over", help="Change objects that another manager installed, such as LLMKube's CRDs.")
    ] = False,
    namespace: Annotated[str, typer.Option("--namespace", "-n", help="Namespace of the operator.")] = SYSTEM_NAMESPACE,
    image: Annotated[str | None, typer.Option(help="Image of the operator. The default is herdsman:VERSION.")] = None,
    pull_secret: Annotated[str | None, typer.Option(help="Secret for pulling the image.")] = None,
    replicas: Annotated[
        int | None,
        typer.Option(
            help="Number of loops, 1 or 2. Of 2 loops, one leads; the other one takes over when the leader ends."
        ),
    ] = None,
    memory: Annotated[str | None, typer.Option(help="Memory of the operator, such as 1Gi.")] = None,
    state: Annotated[
        str | None, typer.Option(help="URL of the state's backend. The default is a volume claim.")
    ] = None,
    state_secret: Annotated[
        str | None, typer.Option(help="Secret with the URL of the state's backend as `url`, and its credentials.")
    ] = None,
    state_claim_size: Annotated[str | None, typer.Option(help="Size of the volume claim for the state.")] = None,
    state_claim_class: Annotated[
        str | None, typer.Option(help="Storage class of the volume claim for the state.")
    ] = None,
    passphrase_secret: Annotated[str | None, typer.Option(help="Secret with the state's `passphrase`.")] = None,
    metrics_secret: Annotated[
        str | None, typer.Option(help="Secret with the `token` that scrapers of metrics send.")
    ] = None,
    policies: Annotated[str | None, typer.Option(help="ConfigMap with a file for each policy.")] = None,
    kserve: Annotated[
        bool, typer.Option("--kserve", help="Grant the permissions that services of KServe need.")
    ] = False,
    llmaz: Annotated[bool, typer.Option("--llmaz", help="Grant the permissions that services of llmaz need.")] = False,
    external_metrics: Annotated[
        bool,
        typer.Option(
            "--external-metrics",
            help="Serve the requests at the gateways to HorizontalPodAutoscalers, as external metrics.",
        ),
    ] = False,
    priority_classes: Annotated[
        bool, typer.Option("--priority-classes/--no-priority-classes", help="Also install the PriorityClasses.")
    ] = True,
    host_identities: Annotated[
        str | None,
        typer.Option(help="Response to an agent that writes for another host: deny or warn."),
    ] = None,
    gateway: Annotated[
        bool, typer.Option("--gateway", help="Also install the gateway: one address of OpenAI's API for all services.")
    ] = False,
    gateway_replicas: Annotated[int | None, typer.Option(help="Number of gateways. The default is 2.")] = None,
    gateway_max_replicas: Annotated[
        int | None, typer.Option(help="Largest number of gateways of an autoscaler. The default is no autoscaler.")
    ] = None,
    gateway_memory: Annotated[str | None, typer.Option(help="Memory of one gateway, such as 512Mi.")] = None,
    gateway_metrics: Annotated[
        bool,
        typer.Option("--gateway-metrics", help="Serve the gateway's metrics at port 9090 of its pods."),
    ] = False,
    gateway_tls_secret: Annotated[
        str | None, typer.Option(help="Secret with the gateway's certificate; by default herdsman-gateway-tls.")
    ] = None,
    gateway_store_secret: Annotated[
        str | None,
        typer.Option(help="Secret with the `url` of the gateways' PostgreSQL or Redis, for limits and usage."),
    ] = None,
    gateway_audit_endpoint: Annotated[
        str | None, typer.Option(help="URL of the OTLP collector for audits of ModelRouters.")
    ] = None,
    gateway_service_type: Annotated[
        str | None, typer.Option(help="Type of the gateway's Service: ClusterIP, NodePort or LoadBalancer.")
    ] = None,
    gateway_host: Annotated[
        str | None, typer.Option(help="Name of the gateway in DNS, for an Ingress or HTTPRoute.")
    ] = None,
    gateway_ingress_class: Annotated[
        str | None, typer.Option(help="Class of an Ingress for the gateway. The default is no Ingress.")
    ] = None,
    gateway_parent: Annotated[
        str | None, typer.Option(help="Gateway of an HTTPRoute for the gateway. The default is no HTTPRoute.")
    ] = None,
    gateway_parent_namespace: Annotated[str | None, typer.Option(help="Namespace of --gateway-parent.")] = None,
    gateway_ca_configmap: Annotated[
        str | None, typer.Option(help="ConfigMap with the `ca.crt` that --gateway-parent trusts.")
    ] = None,
    console: Annotated[
        bool,
        typer.Option("--console", help="Also install the web console, for everybody with a token of the cluster."),
    ] = False,
    console_tls_secret: Annotated[
        str | None, typer.Option(help="Secret with the console's certificate; by default herdsman-console-tls.")
    ] = None,
    console_service_type: Annotated[
        str | None, typer.Option(help="Type of the console's Service: ClusterIP, NodePort or LoadBalancer.")
    ] = None,
    console_host: Annotated[str | None, typer.Option(help="Name of the console in DNS.")] = None,
    console_ingress_class: Annotated[
        str | None, typer.Option(help="Class of an Ingress for the console. The default is no Ingress.")
    ] = None,
    console_trusted_proxies: Annotated[
        str | None,
        typer.Option(help="Networks of proxies that tell the console its callers' addresses, as in 10.0.0.0/8."),
    ] = None,
    settings: Annotated[
        list[str] | None, typer.Option("--set", help="A setting of `herdsman run`, as NAME=VALUE.")
    ] = None,
    kubeconfig: Annotated[str | None, typer.Option(help="Path of a kubeconfig.")] = None,
    output: Annotated[OutputFormat, typer.Option("-o", "--output", help="table or json.")] = OutputFormat.TABLE,
) -> None:
    """Install, upgrade or change the operator.

    Each installation sets all options: an omitted option returns to its default. A repetition with the same options
    changes nothing. CRDs are updated and never deleted.
    """
    from automation.external_metrics.registration import API_SERVICE
    from automation.install import naming, objects

    options = _options(
        {
            "namespace": namespace,
            "image": image,
            "pull_secret": pull_secret,
            "replicas": replicas,
            "memory": memory,
            "state": state,
            "state_secret": state_secret,
            "state_claim_size": state_claim_size,
            "state_claim_class": state_claim_class,
            "passphrase_secret": passphrase_secret,
            "metrics_secret": metrics_secret,
            "policies": policies,
            "kserve": kserve,
            "llmaz": llmaz,
            "external_metrics": external_metrics,
            "priority_classes": priority_classes,
            "host_identities": host_identities,
            "gateway": gateway,
            "gateway_replicas": gateway_replicas,
            "gateway_max_replicas": gateway_max_replicas,
            "gateway_memory": gateway_memory,
            "gateway_metrics": gateway_metrics,
            "gateway_tls_secret": gateway_tls_secret,
            "gateway_store_secret": gateway_store_secret,
            "gateway_audit_endpoint": gateway_audit_endpoint,
            "gateway_service_type": gateway_service_type,
            "gateway_host": gateway_host,
            "gateway_ingress_class": gateway_ingress_class,
            "gateway_parent": gateway_parent,
            "gateway_parent_namespace": gateway_parent_namespace,
            "gateway_ca_configmap": gateway_ca_configmap,
            "console": console,
            "console_tls_secret": console_tls_secret,
            "console_service_type": console_service_type,
            "console_host": console_host,
            "console_ingress_class": console_ingress_class,
            "console_trusted_proxies": console_trusted_proxies,
            "settings": _pairs(settings or ()),
        }
    )
    if render:
        say(objects.manifest(objects.chosen(options), options), nl=False)
        return
    with exit_on_error():
        installer = connected(kubeconfig).installer
        if unserved := installer.unserved():
            complain(
                f"this API server does not serve {' and '.join(sorted(unserved))}; so each agent can write for all "
                f"hosts",
                hint="upgrade to Kubernetes 1.30 or newer; until then, protect each agent's token as a token for all "
                "hosts",
            )
        if other := installer.other_metrics_adapter(options):
            complain(
                f"APIService {API_SERVICE} leads to Service {other}, so another adapter serves the cluster's external "
                f"metrics; the installation leaves it alone, and the loop scales services by requests itself",
                hint="omit --external-metrics, or remove that adapter first",
            )
        if dry_run or preview:
            comparison = installer.compare(options)
            show_comparison(comparison, output)
            raise typer.Exit(EXIT_CHANGES if comparison.changed else 0)
        changes = installer.install(options, take_over=take_over)
    show_changes(changes, output)
    if output is OutputFormat.TABLE:
        say(f"Follow the rollout: kubectl -n {options.namespace} rollout status deployment/{naming.NAME}")


def _options(given: dict[str, Any]) -> Any:
    from pydantic import ValidationError

    from automation.install.options import InstallOptions

    try:
        return InstallOptions(**{name: value for name, value in given.items() if value is not None})
    except ValidationError as error:
        first = error.errors()[0]
        where = "--" + "-".join(str(part) for part in first["loc"]).replace("_", "-") + ": " if first["loc"] else ""
        raise typer.BadParameter(
            where.replace("--settings", "--set") + first["msg"].removeprefix("Value error, ")
        ) from None


def _pairs(words: Iterable[str]) -> dict[str, str]:
    found = {}
    for word in words:
        name, equals, value = word.partition("=")
        if not name or not equals:
            raise typer.BadParameter(f"--set: `{word}` is not NAME=VALUE")
        found[name.strip()] = value
    return found
