"""`herdsman cache`: the models in the model caches and their users; delete unused ones, and download a Model early.

Works with the caller's permissions and without a loop. Reads a claim through a pod that mounts it, because there is no
other way. `automation.models.cache_inventory` decides which Models and services use which files.

Exit codes: 0 done (`prune` without `--yes` only lists), 1 something could not be read, deleted or downloaded.
"""

from __future__ import annotations

import time
from datetime import UTC, datetime
from typing import Annotated, NoReturn

import typer
from rich.console import Console
from rich.progress import BarColumn, DownloadColumn, Progress, TextColumn, TimeRemainingColumn, TransferSpeedColumn

from automation.cli.dry_run import DryRun, end_dry_run
from automation.cli.output import OutputFormat, complain, duration_text, print_json, print_table, say
from automation.models.cache_claim import CacheClaim
from automation.models.cache_inventory import (
    START_TIMEOUT_S,
    CacheUnreachable,
    Entry,
    InventoryBroken,
    Usage,
    is_cache,
    model_keys_of,
    plan_prune,
    why_pending,
)
from automation.models.prefetch import last_words
from automation.models.transfers import CONTAINER, progress_of
from automation.settings import Settings
from components import naming
from components.model_cache import namespace_claim, prefetch_job
from components.options import RenderOptions
from kubeapi import kinds
from kubeapi.client import KubeClient
from kubeapi.errors import KubeError, NotFound
from kubeapi.json_types import Json
from program.desired.errors import SpecInvalid
from program.desired.keys import Owner
from program.dialects.llmkube.parse.model import model_of
from program.dialects.llmkube.status.model import human_size, known_status
from program.dialects.llmkube.status.model_phase import prefetch_problem

app = typer.Typer(no_args_is_help=True)

LOOK_EVERY_S = 2.0
Namespace = Annotated[str | None, typer.Option("--namespace", "-n", help="Only this namespace.")]
Kubeconfig = Annotated[str | None, typer.Option(help="Path of a kubeconfig.")]
Image = Annotated[
    str | None,
    typer.Option(help="Image of the pods, with a POSIX shell. The default is $HERDSMAN_INIT_CONTAINER_IMAGE."),
]

StartTimeout = Annotated[float, typer.Option("--start-timeout", help="Seconds that a pod may take to start.")]


@app.command("list")
def list_(
    namespace: Namespace = None,
    kubeconfig: Kubeconfig = None,
    image: Image = None,
    start_timeout_s: StartTimeout = START_TIMEOUT_S,
    output: Annotated[OutputFormat, typer.Option("-o", "--output", help="table or json.")] = OutputFormat.TABLE,
) -> None:
    """List the models in the model caches: size, files, age, and which Models and services use them."""
    client = _client(kubeconfig)
    entries, failed = _look(client, namespace, _options(image), start_timeout_s)
    now = datetime.now(UTC).timestamp()
    if output is OutputFormat.JSON:
        print_json([_row(entry, now=now) for entry in entries])
    elif entries:
        columns = ("NAMESPACE", "CLAIM", "KEY", "SIZE", "FILES", "AGE", "MODELS", "SERVICES", "")
        print_table(columns, [_cells(entry, now=now) for entry in entries])
    elif not failed:
        complain("all model caches are empty")
    if failed:
        raise typer.Exit(1)


@app.command()
def prune(
    namespace: Namespace = None,
    orphaned: Annotated[
        bool, typer.Option("--orphaned", help="Delete all models that no Model and no service uses.")
    ] = False,
    model: Annotated[
        str, typer.Option(help="Delete the cached files of this Model, if no service uses them. Needs -n.")
    ] = "",
    key: Annotated[str, typer.Option(help="Delete the directory with this key, if nothing uses it.")] = "",
    yes: Annotated[
        bool, typer.Option("--yes/--dry-run", help="Delete the models. Without it, only list them.")
    ] = False,
    kubeconfig: Kubeconfig = None,
    image: Image = None,
    start_timeout_s: StartTimeout = START_TIMEOUT_S,
) -> None:
    """Delete unused models from the model caches. Only lists them, unless --yes is given."""
    if sum((orphaned, bool(model), bool(key))) != 1:
        raise typer.BadParameter("choose one of --orphaned, --model and --key")
    if model and not namespace:
        raise typer.BadParameter("--model needs --namespace")
    client, options = _client(kubeconfig), _options(image)
    wanted = None
    if model:
        assert namespace is not None
        wanted = frozenset(model_keys_of(_model(client, namespace, model)))
    entries, failed = _look(client, namespace, options, start_timeout_s)
    chosen, refused = plan_prune(entries, model_keys=wanted, key=key)
    for why in refused:
        complain(f"not deleted: {why}")
    if not chosen:
        say("Nothing to delete")
        raise typer.Exit(1 if failed or refused else 0)
    total = human_size(sum(entry.directory.size_bytes for entry in chosen))
    if not yes:
        for entry in chosen:
            size = human_size(entry.directory.size_bytes)
            say(f"Would delete {entry.directory.key} ({size}) from {entry.namespace}/{entry.claim}")
        say(f"{total} in total; add --yes to delete")
        raise typer.Exit(1 if failed or refused else 0)
    kept = _delete(client, chosen, options, start_timeout_s)
    raise typer.Exit(1 if kept or failed or refused else 0)


@app.command()
def warm(
    name: Annotated[str, typer.Argument(metavar="MODEL", help="The Model to download.")],
    namespace: Annotated[str, typer.Option("--namespace", "-n", help="Its namespace.")] = "default",
    kubeconfig: Kubeconfig = None,
    image: Image = None,
    timeout_s: Annotated[
        float, typer.Option("--timeout", help="Seconds to wait for the end of the download; 0 does not wait.")
    ] = 7200,
    dry_run: DryRun = False,
) -> None:
    """Download a Model into its namespace's cache before a service needs it, and show the progress."""
    client, options = _client(kubeconfig), _options(image)
    cr = _model(client, namespace, name)
    try:
        model = model_of(cr)
    except SpecInvalid as error:
        _fail(str(error))
    if problem := prefetch_problem(model):
        _fail(f"Model {namespace}/{name} cannot be cached: {problem}")
    if not known_status(cr).get("path"):
        _fail(
            f"Model {namespace}/{name} has no directory in the cache yet",
            hint="a loop assigns the directory: check that `herdsman run` runs",
        )
    owner = Owner.of(cr)
    job = prefetch_job(model, namespace, owner, options, warm=True)
    try:
        if dry_run:
            live = client.find(kinds.JOBS, namespace, job["metadata"]["name"])
            same = live is not None and not _ended(live) and _hash(live) == _hash(job)
            end_dry_run([] if same else [f"download the model by Job {namespace}/{job['metadata']['name']}"])
        _start(client, namespace, job, namespace_claim(model, namespace, options))
        if timeout_s > 0:
            _follow(client, namespace, job["metadata"]["name"], deadline=time.monotonic() + timeout_s)
    except KubeError as error:
        _fail(str(error))


# --- list and prune ---------------------------------------------------------------------------------------------------


def _look(
    client: KubeClient, namespace: str | None, options: RenderOptions, start_timeout_s: float
) -> tuple[list[Entry], bool]:
    """Read every cache. Prints an error for each that cannot be read; the second value is then True."""
    try:
        claims = [claim for claim in client.list(kinds.CLAIMS, namespace)["items"] if is_cache(claim)]
        models = client.list(kinds.MODELS, namespace)["items"]
        services = client.list(kinds.INFERENCE_SERVICES, namespace)["items"]
    except KubeError as error:
        _fail(str(error))
    entries: list[Entry] = []
    failed = False
    for claim in sorted(claims, key=lambda c: (c["metadata"]["namespace"], c["metadata"]["name"])):
        where, name = claim["metadata"]["namespace"], claim["metadata"]["name"]
        usage = Usage(_of(models, where), _of(services, where))
        try:
            found = CacheClaim(client, claim, options, start_timeout_s).directories()
            entries += usage.entries(where, name, found)
        except (CacheUnreachable, InventoryBroken, KubeError) as error:
            complain(f"{where}/{name}: {error}")
            failed = True
    return entries, failed


def _delete(client: KubeClient, chosen: list[Entry], options: RenderOptions, start_timeout_s: float) -> bool:
    """Delete directories, claim by claim. Return True when a requested one still exists."""
    kept = False
    for where, name in sorted({(entry.namespace, entry.claim) for entry in chosen}):
        keys = [entry.directory.key for entry in chosen if (entry.namespace, entry.claim) == (where, name)]
        try:
            claim = client.get(kinds.CLAIMS, where, name)
            ended = CacheClaim(client, claim, options, start_timeout_s).delete(keys)
        except (CacheUnreachable, InventoryBroken, KubeError) as error:
            complain(f"{where}/{name}: {error}")
            kept = True
            continue
        for key in keys:
            outcome = ended[key]
            if outcome in ("deleted", "gone"):
                say(f"Deleted {key} from {where}/{name}")
            else:
                why = "a download is running" if outcome == "busy" else "the pod's user may not delete its files"
                complain(f"not deleted: {key} on {where}/{name}: {why}")
                kept = True
    return kept


def _row(entry: Entry, *, now: float) -> Json:
    directory = entry.directory
    return {
        "namespace": entry.namespace,
        "claim": entry.claim,
        "key": directory.key,
        "sizeBytes": directory.size_bytes,
        "files": directory.files,
        "ageSeconds": max(0, int(now - directory.changed_at)),
        "downloading": directory.busy,
        "models": list(entry.models),
        "services": list(entry.services),
        "orphaned": entry.orphaned,
    }


def _cells(entry: Entry, *, now: float) -> list[str]:
    directory = entry.directory
    note = "downloading" if directory.busy else "orphaned" if entry.orphaned else ""
    return [
        entry.namespace,
        entry.claim,
        directory.key,
        human_size(directory.size_bytes),
        str(directory.files),
        duration_text(max(0.0, now - directory.changed_at)),
        ",".join(entry.models) or "-",
        ",".join(entry.services) or "-",
        note,
    ]


# --- warm -------------------------------------------------------------------------------------------------------------


def _start(client: KubeClient, namespace: str, job: Json, claim: Json) -> None:
    """Create the Job, or use an existing one, which does the same. A finished Job is created again."""
    try:
        client.get(kinds.CLAIMS, namespace, naming.CACHE_CLAIM)
    except NotFound:
        client.apply(kinds.CLAIMS, namespace, claim, field_manager=naming.FIELD_MANAGER)
    name = job["metadata"]["name"]
    live = client.find(kinds.JOBS, namespace, name)
    if live is not None and (_ended(live) or _hash(live) != _hash(job)):
        client.delete(kinds.JOBS, namespace, name, uid=live["metadata"]["uid"])
        deadline = time.monotonic() + 30
        while live is not None and time.monotonic() < deadline:
            time.sleep(0.2)
            live = client.find(kinds.JOBS, namespace, name)
    if live is None:
        client.apply(kinds.JOBS, namespace, job, field_manager=naming.FIELD_MANAGER)


def _follow(client: KubeClient, namespace: str, name: str, *, deadline: float) -> None:
    """Show the Job's progress until it ends. Exits with 1 when it fails, or does not end in time."""
    bar = Progress(
        TextColumn("{task.description}"),
        BarColumn(),
        DownloadColumn(binary_units=True),
        TransferSpeedColumn(),
        TimeRemainingColumn(),
        console=Console(stderr=True),
    )
    selector = f"batch.kubernetes.io/job-name={name}"
    with bar:
        task = bar.add_task("Waiting for a pod", total=None)
        while time.monotonic() < deadline:
            job = client.get(kinds.JOBS, namespace, name)
            pods = client.list(kinds.PODS, namespace, label_selector=selector)["items"]
            ended = _ended(job)
            if ended == "Complete":
                bar.update(task, description="In the cache")
                bar.stop()
                say(f"Model {job['metadata']['labels'][naming.LABEL_MODEL]} is in the cache")
                return
            if ended:
                bar.stop()
                _fail(f"Job {namespace}/{name} failed: {last_words(pods) or 'its log is empty'}")
            for pod in pods:
                said = _said(client, namespace, pod)
                if said is not None:
                    bar.update(task, description="Fetching", completed=said[0], total=said[1])
                elif (pod.get("status") or {}).get("phase") == "Pending":
                    bar.update(task, description=_why_waiting(pod))
            time.sleep(LOOK_EVERY_S)
    _fail(f"Job {namespace}/{name} has not ended within the timeout; it continues in the cluster")


def _said(client: KubeClient, namespace: str, pod: Json) -> tuple[int, int | None] | None:
    path = kinds.PODS.path(namespace, pod["metadata"]["name"], "log")
    try:
        return progress_of(client.text(path, query={"container": CONTAINER, "tailLines": "5"}))
    except KubeError:
        return None


def _why_waiting(pod: Json) -> str:
    started = any("running" in (e.get("state") or {}) for e in pod["status"].get("initContainerStatuses") or ())
    return "Fetching" if started else why_pending(pod)[:80]


def _ended(job: Json) -> str:
    conditions = (job.get("status") or {}).get("conditions") or ()
    return next((c["type"] for c in conditions if c["type"] in ("Complete", "Failed") and c["status"] == "True"), "")


def _hash(job: Json) -> str:
    return str((job["metadata"].get("annotations") or {}).get(naming.ANNOTATION_APPLIED_HASH, ""))


# --- shared -----------------------------------------------------------------------------------------------------------


def _client(kubeconfig: str | None) -> KubeClient:
    try:
        return KubeClient.default(kubeconfig)
    except KubeError as error:
        _fail(str(error))


def _options(image: str | None) -> RenderOptions:
    """Read the same options from the environment as the loop, so that both make the same pods."""
    settings = Settings()
    return RenderOptions(
        cache_size=settings.model_cache_size,
        cache_storage_class=settings.model_cache_storage_class,
        cache_access_mode=settings.model_cache_access_mode,
        default_fs_group=settings.default_fsgroup,
        init_image=image or settings.init_container_image,
        ca_configmap=settings.ca_cert_configmap,
        hub_url=settings.hub_url.rstrip("/"),
    )


def _model(client: KubeClient, namespace: str, name: str) -> Json:
    try:
        return client.get(kinds.MODELS, namespace, name)
    except NotFound:
        _fail(f"no Model {namespace}/{name}")
    except KubeError as error:
        _fail(str(error))


def _of(objects: list[Json], namespace: str) -> list[Json]:
    return [obj for obj in objects if obj["metadata"]["namespace"] == namespace]


def _fail(message: str, *, hint: str = "") -> NoReturn:
    complain(message, hint=hint)
    raise typer.Exit(1)
