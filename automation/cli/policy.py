"""`herdsman policy`: check manifests against policies, without a cluster."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from automation.cli.manifest_files import Files, Namespace, read_manifests
from automation.cli.output import OutputFormat, complain, print_json, say
from automation.preview.report import violation_json
from components.policies.policy import Policies, PolicyUnreadable, Violation
from components.policies.reading import load_policies
from components.render import RenderOptions, render
from program.desired.errors import DesiredError
from program.dialects.llmkube.parse.referrers import check_referrer
from program.manifests import Document, Manifests

app = typer.Typer(no_args_is_help=True)


@app.callback()
def policy() -> None:
    """Check manifests against policies."""


@app.command()
def check(
    files: Files,
    policies: Annotated[Path, typer.Option("--policies", metavar="DIR", help="The folder of policies.")],
    namespace: Namespace = "default",
    label: Annotated[
        list[str] | None,
        typer.Option(
            "--namespace-label", metavar="KEY=VALUE", help="Label of the namespaces, for policies that select by it."
        ),
    ] = None,
    output: Annotated[OutputFormat, typer.Option("-o", "--output", help="table (text) or json.")] = OutputFormat.TABLE,
) -> None:
    """List the policies that the services and resources of files violate. Exit code 1 when one of them is mandatory."""
    labels = dict(_pair(each) for each in label or ())
    manifests = read_manifests(files, namespace)
    try:
        rules = load_policies(policies)
    except PolicyUnreadable as error:
        complain(str(error), hint="docs/how-to/policies.md describes the fields of a policy")
        raise typer.Exit(1) from None
    try:
        found = _violations(manifests, rules, labels)
    finally:
        rules.close()
    for problem in manifests.errors:
        complain(problem)
    if output is OutputFormat.JSON:
        print_json([_as_json(document, violation) for document, violation in found])
    else:
        for document, violation in found:
            say(f"{document}: {'' if violation.mandatory else 'advice: '}{violation}")
        if not found and not manifests.errors:
            say("The documents violate no policy.")
    if manifests.errors or any(violation.mandatory for _, violation in found):
        raise typer.Exit(1)


def _violations(manifests: Manifests, rules: Policies, labels: dict[str, str]) -> list[tuple[Document, Violation]]:
    found = []
    for document in manifests.take_referrers():
        try:
            check_referrer(document.cr)
        except DesiredError as error:
            manifests.errors.append(f"{document}: {error}")
            continue
        violations = rules.check_resource(document.cr, namespace_labels=labels)
        found += [(document, violation) for violation in violations]
    for document, desired in manifests.services():
        try:
            rendered = render(desired, RenderOptions())
        except DesiredError as error:
            manifests.errors.append(f"{document}: {error}")
            continue
        violations = rules.check(desired, rendered, cr=document.cr, namespace_labels=labels)
        found += [(document, violation) for violation in violations]
    return found


def _pair(text: str) -> tuple[str, str]:
    key, equals, value = text.partition("=")
    if not equals or not key:
        raise typer.BadParameter(f"`{text}` is not KEY=VALUE", param_hint="--namespace-label")
    return key, value


def _as_json(document: Document, violation: Violation) -> dict[str, object]:
    return {
        "file": document.where,
        "namespace": document.namespace,
        "name": document.name,
        **violation_json(violation),
    }
