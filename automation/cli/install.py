"""`herdsman install`: put Herdsman into a cluster, change its options, bring it up to date."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Annotated, Any

import typer

from automation.cli.installing import connected, errors_told, show_changes, show_comparison
from automation.cli.output import OutputFormat, complain, say
from automation.settings import SYSTEM_NAMESPACE

EXIT_CHANGES = 2


def install(
    preview: Annotated[bool, typer.Option("--preview", help="Only say what would change; exit code 2 then.")] = False,
    render: Annotated[bool, typer.Option("--render", help="Only print the objects as YAML; asks no cluster.")] = False,
    take_over: Annotated[
        bool, typer.Option("--take-over", help="Change objects that somebody else installed, such as LLMKube's CRDs.")
    ] = False,
    namespace: Annotated[str, typer.Option("--namespace", "-n", help="Where the operator runs.")] = SYSTEM_NAMESPACE,
    image: Annotated[str | None, typer.Option(help="The image; by default herdsman:VERSION.")] = None,
    pull_secret: Annotated[str | None, typer.Option(help="Secret that the image is pulled with.")] = None,
    replicas: Annotated[int | None, typer.Option(help="1, or 2 that take over from each other.")] = None,
    memory: Annotated[str | None, typer.Option(help="Memory of the operator, as 1Gi.")] = None,
    state: Annotated[str | None, typer.Option(help="URL of the state's backend; by default a claim.")] = None,
    state_secret: Annotated[str | None, typer.Option(help="Secret with that URL as `url`, and credentials.")] = None,
    state_claim_size: Annotated[str | None, typer.Option(help="Size of the claim for the state.")] = None,
    state_claim_class: Annotated[str | None, typer.Option(help="Storage class of that claim.")] = None,
    passphrase_secret: Annotated[str | None, typer.Option(help="Secret with the state's `passphrase`.")] = None,
    metrics_secret: Annotated[str | None, typer.Option(help="Secret with the `token` that scrapers send.")] = None,
    policies: Annotated[str | None, typer.Option(help="ConfigMap with a file for each policy.")] = None,
    kserve: Annotated[bool, typer.Option("--kserve", help="Grant what KServe's services need.")] = False,
    llmaz: Annotated[bool, typer.Option("--llmaz", help="Grant what llmaz's services need.")] = False,
    priority_classes: Annotated[
        bool, typer.Option("--priority-classes/--no-priority-classes", help="Install the PriorityClasses, too.")
    ] = True,
    host_identities: Annotated[
        str | None,
        typer.Option(help="deny or warn: what happens when an agent writes for a host that is not its own."),
    ] = None,
    settings: Annotated[
        list[str] | None, typer.Option("--set", help="Any setting of `herdsman run`, as NAME=VALUE; again for more.")
    ] = None,
    kubeconfig: Annotated[str | None, typer.Option(help="Path of a kubeconfig.")] = None,
    output: Annotated[OutputFormat, typer.Option("-o", "--output", help="table or json.")] = OutputFormat.TABLE,
) -> None:
    """Install, upgrade or change the operator. Options count as a whole: what is left out is as by default again.

    Running it again with the same options changes nothing. CRDs are brought up to date and never deleted.
    """
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
            "priority_classes": priority_classes,
            "host_identities": host_identities,
            "settings": _pairs(settings or ()),
        }
    )
    if render:
        say(objects.manifest(objects.chosen(options), options), nl=False)
        return
    with errors_told():
        installer = connected(kubeconfig).installer
        if unserved := installer.unserved():
            complain(
                f"this API server does not serve {' and '.join(sorted(unserved))}; nothing binds an agent to its host",
                hint="Kubernetes 1.30 or newer does; until then treat each agent's token as one for all hosts",
            )
        if preview:
            comparison = installer.compare(options)
            show_comparison(comparison, output)
            raise typer.Exit(EXIT_CHANGES if comparison.changed else 0)
        changes = installer.install(options, take_over=take_over)
    show_changes(changes, output)
    if output is OutputFormat.TABLE:
        say(f"Follow it: kubectl -n {options.namespace} rollout status deployment/{naming.NAME}")


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
