"""`herdsman adopt`: take services over from the upstream controller without restarts, and give them back.

from-llmkube.md, migrate-from-kserve.md and migrate-from-llmaz.md in docs/how-to give the order of a migration, and the
reason why the controller of LLMKube, KServe or llmaz must be stopped first.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Sequence
from dataclasses import replace
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Annotated, Any

import typer

from automation.cli.dry_run import OlderPreview
from automation.cli.output import OutputFormat, complain, print_json, print_table, say, say_painted
from automation.cli.service_lookup import find_versioned, list_services
from automation.places.resources import list_resources
from kubeapi.json_types import Json

if TYPE_CHECKING:
    from automation.adoption.adopter import Adopter, Result
    from automation.adoption.candidates import Candidate
    from automation.preview.changes import Preview, ResourcePreview
    from automation.preview.lookup import PreviewLookup
    from kubeapi.client import KubeClient

COLUMNS = ("NAMESPACE", "NAME", "STATE", "TOOK", "WHY")
THREADS = 4


def adopt(
    names: Annotated[
        list[str] | None, typer.Argument(help="Services: NAME, or KIND/NAME. Also modelrouter/NAME and the like.")
    ] = None,
    namespace: Annotated[str | None, typer.Option("--namespace", "-n", help="Namespace of the services.")] = None,
    all_namespaces: Annotated[
        bool, typer.Option("--all-namespaces", "-A", help="With --all: the services of all namespaces.")
    ] = False,
    everything: Annotated[
        bool, typer.Option("--all", help="All services and resources of the namespace, of all kinds.")
    ] = False,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Only show what would change.")] = False,
    older_preview: OlderPreview = False,
    release: Annotated[
        bool, typer.Option("--release", help="Give services back to the controller that had them before.")
    ] = False,
    refresh: Annotated[
        bool,
        typer.Option("--refresh", help="Roll out Herdsman's pod template to adopted services. Their pods restart."),
    ] = False,
    yes: Annotated[bool, typer.Option("--yes", "-y", help="Do not ask.")] = False,
    keep_going: Annotated[bool, typer.Option("--keep-going", help="Continue after a service that failed.")] = False,
    force: Annotated[
        bool, typer.Option("--force", help="Adopt even if the upstream controller appears to run.")
    ] = False,
    parallel: Annotated[int, typer.Option(help="How many services are adopted at the same time.", min=1, max=64)] = 1,
    timeout: Annotated[float, typer.Option(help="Seconds to wait for the loop, for each service.", min=1)] = 120.0,
    controller_class: Annotated[
        str, typer.Option(help="Controller class of the loop that takes the services over.")
    ] = "herdsman",
    kubeconfig: Annotated[str | None, typer.Option(help="Path of a kubeconfig.")] = None,
    output: Annotated[OutputFormat, typer.Option("-o", "--output", help="table or json.")] = OutputFormat.TABLE,
) -> None:
    """Take over services of LLMKube, KServe or llmaz, one by one. No pod restarts. Shows a preview first.

    The loop must run (`herdsman run --controller-class herdsman`), and the upstream controller must be stopped. Exit
    code 0: done. 1: a service failed; the services before it are taken over, and the command can be repeated.
    """
    everything, preview = everything or all_namespaces, dry_run or older_preview
    if bool(names) == everything:
        raise typer.BadParameter("name services, or give --all")
    if release and refresh:
        raise typer.BadParameter("--release and --refresh exclude each other")
    if preview and (release or refresh):
        raise typer.BadParameter(
            "--dry-run shows what an adoption would change; leave out the other options of adoption"
        )
    if output is OutputFormat.JSON and not (yes or preview):
        raise typer.BadParameter("-o json cannot ask for a confirmation: add --yes or --dry-run")
    from automation.adoption.adopter import Adopter
    from kubeapi.client import KubeClient
    from kubeapi.errors import KubeError

    try:
        client = KubeClient.default(kubeconfig)
        services = _services(client, names or [], namespace, everywhere=all_namespaces)
        adopter = Adopter(client, controller_class=controller_class, timeout_s=timeout)
        found = adopter.candidates(services)
        if refresh or release:
            results = _release_or_refresh(
                adopter, found, release=release, yes=yes, parallel=parallel, keep_going=keep_going
            )
        else:
            if not (force or preview):
                _end_beside_upstream(client, found)
            results = _adopt(client, adopter, found, preview, output, yes=yes, parallel=parallel, keep_going=keep_going)
    except (KubeError, ValueError) as error:
        complain(str(error))
        raise typer.Exit(1) from None
    if preview:
        return
    _report(results, output)
    raise typer.Exit(1 if any(result.failed for result in results) else 0)


def _services(client: KubeClient, names: Sequence[str], namespace: str | None, *, everywhere: bool) -> list[Json]:
    from program.dialects.registry import is_part_of_another

    if names:
        return [find_versioned(client, namespace, name) for name in dict.fromkeys(names)]
    where = None if everywhere else namespace or "default"
    services = [each for each in list_services(client, where) if not is_part_of_another(each)]
    return [*services, *list_resources(client, where)]


def _end_beside_upstream(client: KubeClient, found: Sequence[Candidate]) -> None:
    """End the command if an upstream controller works on services to adopt, or its webhooks refuse their changes."""
    from automation.adoption.candidates import State
    from automation.adoption.upstream_controller import running_controllers, upstream_of, webhooks_in_the_way

    wanted = [each for each in found if each.state is State.ADOPTABLE] or found
    for upstream in dict.fromkeys(upstream_of(each.key.dialect) for each in wanted):
        if signs := running_controllers(client, upstream, now=datetime.now(UTC)):
            complain(
                f"{upstream.name}'s controller runs; it and the loop would overwrite each other's changes: "
                + "; ".join(signs),
                hint=f"stop the controller (`{upstream.stop}`) and wait 20 s until its Lease expires; services keep "
                f"serving. "
                "If the controller does not run, add --force",
            )
            raise typer.Exit(1)
        if webhooks := webhooks_in_the_way(client, upstream):
            complain(
                f"{upstream.name}'s webhooks refuse every change of a service while its controller is stopped",
                hint=f"`kubectl delete {' '.join(webhooks)}`; an installation of {upstream.name} creates them again. "
                "If another server answers the webhooks, add --force",
            )
            raise typer.Exit(1)


def _adopt(
    client: KubeClient,
    adopter: Adopter,
    found: Sequence[Candidate],
    preview: bool,
    output: OutputFormat,
    *,
    yes: bool,
    parallel: int,
    keep_going: bool,
) -> list[Result]:
    from automation.adoption.adopter import Result
    from automation.adoption.candidates import State

    wanted = [each for each in found if each.state is State.ADOPTABLE]
    results = [Result(each, "skipped", each.why) for each in found if each.state is not State.ADOPTABLE]
    if preview or not yes:
        _show(_preview(client, adopter, wanted), results, output)
    if preview or not wanted:
        return results
    _confirm(f"Take over {_count(wanted)}?", yes=yes)
    return [*results, *_act_in_batches(adopter.adopt, wanted, parallel=parallel, keep_going=keep_going)]


def _release_or_refresh(
    adopter: Adopter,
    found: Sequence[Candidate],
    *,
    release: bool,
    yes: bool,
    parallel: int,
    keep_going: bool,
) -> list[Result]:
    from automation.adoption.adopter import Result
    from automation.adoption.candidates import State, is_half_released
    from automation.adoption.kept_templates import read_record
    from automation.adoption.upstream_controller import upstream_of

    def concerned(each: Candidate) -> str:
        if each.state is not State.OURS and not (release and is_half_released(each)):
            return "no loop of this class manages it"
        if refresh_only and not any(read_record(obj) is not None for obj in each.workloads.values()):
            return "its pods have Herdsman's template already"
        return ""

    refresh_only = not release
    why = {each.key: concerned(each) for each in found}
    wanted = [each for each in found if not why[each.key]]
    results = [Result(each, "skipped", why[each.key]) for each in found if why[each.key]]
    if not wanted:
        return results
    peers = " and ".join(dict.fromkeys(upstream_of(each.key.dialect).name for each in wanted))
    question = f"Give {_count(wanted)} back to {peers}?" if release else f"Restart the pods of {_count(wanted)}?"
    _confirm(question, yes=yes)
    act = adopter.release if release else adopter.refresh
    return [*results, *_act_in_batches(act, wanted, parallel=parallel, keep_going=keep_going)]


def _act_in_batches(act: Any, wanted: Sequence[Candidate], *, parallel: int, keep_going: bool) -> list[Result]:
    """Call `act` with some services at a time. The first failure skips the rest, unless `keep_going` is set."""
    from automation.adoption.adopter import Result
    from automation.preview.report import name_text

    results: list[Result] = []
    for at in range(0, len(wanted), parallel):
        done = act(wanted[at : at + parallel])
        results += done
        for result in done:
            name = name_text(result.candidate.key)
            say(f"[{len(results)}/{len(wanted)}] {name}: {result.state} ({result.seconds:.1f}s)", err=True)
        if any(result.failed for result in done) and not keep_going:
            rest = wanted[at + parallel :]
            return [*results, *(Result(each, "skipped", "an earlier service failed") for each in rest)]
    return results


def _preview(client: KubeClient, adopter: Adopter, wanted: Sequence[Candidate]) -> Preview:
    """Preview services with the annotations that an adoption writes, so with the pod templates that they run."""
    from automation.adoption.candidates import preview_notes
    from automation.preview.changes import Preview
    from automation.preview.lookup import PreviewLookup
    from automation.preview.loop_options import previewer_of_loop
    from automation.preview.rendering import Subject
    from program.dialects.registry import REFERRERS

    look = PreviewLookup(client)

    def subject(each: Candidate) -> Subject:
        given = frozenset(str(obj["metadata"]["uid"]) for obj in each.dependents)
        return Subject(adopter.as_adopted(each), look, edited=False, given=given, notes=preview_notes(each))

    services = [each for each in wanted if each.key.dialect not in REFERRERS]
    resources = tuple(
        _preview_resource(client, look, adopter, each) for each in wanted if each.key.dialect in REFERRERS
    )
    if not services:
        return Preview(resources=resources)
    with previewer_of_loop(client, threads=THREADS) as previewer:
        look.prefetch([each.cr for each in services], previewer.map)
        return Preview(previewer.preview_services([subject(each) for each in services]), resources=resources)


def _preview_resource(client: KubeClient, look: PreviewLookup, adopter: Adopter, one: Candidate) -> ResourcePreview:
    """Preview a ModelRouter, ModelPool or LoRAAdapter. Name the objects of LLMKube's proxy, which stay."""
    from automation.adoption.candidates import LABEL_ROUTER, proxy_of_llmkube
    from automation.preview.custom_resources import AppliedDocument
    from automation.preview.resources import preview_resource

    shown = preview_resource(look, AppliedDocument(adopter.as_adopted(one), one.cr, changed=True))
    if not (proxy := proxy_of_llmkube(client, one.cr)):
        return shown
    delete = f"kubectl -n {one.key.namespace} delete deployment,service,configmap -l {LABEL_ROUTER}={one.key.name}"
    stays = (
        f"LLMKube's proxy of the router stays and answers its clients: {proxy}. When they use the gateway: `{delete}`"
    )
    return replace(shown, warnings=(*shown.warnings, stays))


def _show(found: Preview, skipped: Sequence[Result], output: OutputFormat) -> None:
    from automation.preview.report import as_json, as_terminal_text, name_text

    if output is OutputFormat.JSON:
        print_json({**as_json(found), "skipped": [_row(each) for each in skipped]})
        return
    if found.parts:
        say_painted(as_terminal_text(found, colour=sys.stdout.isatty() and not os.environ.get("NO_COLOR")))
        restarting = [each for each in found.services if each.restarts]
        say("No pod restarts." if not restarting else f"Pods of {len(restarting)} services would restart.")
    for each in skipped:
        say(f"Skipped: {name_text(each.candidate.key)}: {each.why}")


def _confirm(question: str, *, yes: bool) -> None:
    if not yes and not typer.confirm(question):
        raise typer.Exit(1)


def _count(wanted: Sequence[Candidate]) -> str:
    return f"{len(wanted)} service" + ("" if len(wanted) == 1 else "s")


def _row(result: Result) -> dict[str, Any]:
    key = result.candidate.key
    row = {"namespace": key.namespace, "name": key.name, "state": result.state, "why": result.why}
    if key.dialect != "llmkube":
        row["dialect"] = key.dialect
    return {**row, "seconds": result.seconds}


def _report(results: Sequence[Result], output: OutputFormat) -> None:
    rows = [_row(result) for result in results]
    if output is OutputFormat.JSON:
        print_json({"services": rows})
    elif rows:
        cells = [
            (row["namespace"], row["name"], row["state"], f"{row['seconds']:.1f}s", row["why"] or "-") for row in rows
        ]
        print_table(COLUMNS, cells, phase_column=2)
    else:
        say("No services found.")
