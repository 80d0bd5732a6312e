"""`herdsman deploy NAME`: make or update a service, in a cluster or on this machine.

Shows what would change, writes Model and InferenceService, and follows the service until it answers. The loop, or the
local fleet, does the work: an interrupted deploy goes on.
"""

from __future__ import annotations

import sys
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from automation.cli import exits
from automation.cli.dry_run import DryRun
from automation.cli.duration_argument import duration_s
from automation.cli.output import print_json, say, say_painted, say_yaml
from automation.cli.place_options import Kubeconfig, Namespace, errors_end, full_name, open_place

if TYPE_CHECKING:
    from automation.places.place import Place, ServiceState
    from automation.places.service_documents import DeployOptions
    from kubeapi.json_types import Json


FILE_SUFFIXES = (".yaml", ".yml", ".json")
"""An argument that ends in one of these is a file, and no name of a service."""


class DeployFormat(StrEnum):
    """The values of `-o`."""

    TEXT = "text"
    YAML = "yaml"
    JSON = "json"


class Accelerator(StrEnum):
    """The values of `--accelerator`."""

    CPU = "cpu"
    METAL = "metal"
    CUDA = "cuda"
    ROCM = "rocm"
    INTEL = "intel"
    VULKAN = "vulkan"


def _option(*names: str, text: str, metavar: str | None = None) -> object:
    return typer.Option(*names, help=text, metavar=metavar, show_default=False)


def deploy(
    name: Annotated[
        str,
        typer.Argument(
            metavar="NAME", help="Name of the service, or the id of a model of the catalog, or a YAML or JSON file."
        ),
    ],
    source: Annotated[
        str,
        typer.Option(
            "--source",
            "-s",
            help="Model file, https:// address, hf://ORG/REPO/FILE, or other address.",
            show_default=False,
        ),
    ] = "",
    context: Annotated[
        str | None,
        _option(
            "--context",
            metavar="TOKENS",
            text="Context in tokens. A value that is no number is the context of the kubeconfig, as of kubectl.",
        ),
    ] = None,
    kube_context: Annotated[str | None, _option("--kube-context", text="Context of the kubeconfig.")] = None,
    namespace: Namespace = None,
    quantization: Annotated[
        str, typer.Option("--quantization", "-q", help="Quantization, as Q4_K_M.", show_default=False)
    ] = "",
    sha256: Annotated[str, typer.Option(help="SHA-256 that the file must have.", show_default=False)] = "",
    format_: Annotated[
        str, typer.Option("--format", help="Format of the weights: gguf, mlx, safetensors.", show_default="gguf")
    ] = "",
    replicas: Annotated[int | None, typer.Option("--replicas", "-r", min=0, help="Number of replicas.")] = None,
    gpu: Annotated[bool, typer.Option("--gpu", help="Use a GPU.")] = False,
    accelerator: Annotated[
        Accelerator | None, typer.Option(help="Kind of accelerator; cuda with --gpu.", show_default=False)
    ] = None,
    gpu_count: Annotated[int | None, typer.Option(min=1, max=8, help="GPUs of each replica.")] = None,
    gpu_layers: Annotated[int | None, typer.Option(min=-1, help="Layers on the GPU; -1 is all.")] = None,
    gpu_memory: Annotated[str, typer.Option(help="GPU memory that the model needs, as 8Gi.", show_default=False)] = "",
    cpu: Annotated[str, typer.Option(help="CPU request of each replica, as 2 or 500m.", show_default=False)] = "",
    memory: Annotated[str, typer.Option(help="Memory request of each replica, as 4Gi.", show_default=False)] = "",
    parallel: Annotated[int | None, typer.Option(min=1, help="Requests served at once.")] = None,
    flash_attn: Annotated[
        bool | None, typer.Option("--flash-attn/--no-flash-attn", help="Flash attention, on a GPU.")
    ] = None,
    jinja: Annotated[
        bool | None, typer.Option("--jinja/--no-jinja", help="Chat templates by Jinja; tool calls need it.")
    ] = None,
    cache_type_k: Annotated[str, typer.Option(help="Type of the cache's keys, as q8_0.", show_default=False)] = "",
    cache_type_v: Annotated[str, typer.Option(help="Type of the cache's values, as q8_0.", show_default=False)] = "",
    extra_args: Annotated[
        list[str] | None, typer.Option(help="Another argument of the engine. May be repeated.", show_default=False)
    ] = None,
    env: Annotated[
        list[str] | None, typer.Option(help="Variable of the engine, as NAME=VALUE. No secrets.", show_default=False)
    ] = None,
    min_replicas: Annotated[int | None, typer.Option(min=0, help="Least replicas, with an autoscaler.")] = None,
    max_replicas: Annotated[int | None, typer.Option(min=1, help="Most replicas; makes an autoscaler.")] = None,
    runtime: Annotated[str, typer.Option(help="The engine, as llamacpp or vllm.", show_default="llamacpp")] = "",
    image: Annotated[str, typer.Option(help="Image of the engine.", show_default=False)] = "",
    mode: Annotated[str, typer.Option(help="Use of the model: chat, embedding, rerank.", show_default="chat")] = "",
    node_port: Annotated[int | None, typer.Option(help="Port of every node, for clients outside.")] = None,
    host: Annotated[str, typer.Option(help="Host that runs the service.", show_default=False)] = "",
    idle_timeout: Annotated[
        str, typer.Option(help="Time without requests after which it sleeps, as 30m.", show_default=False)
    ] = "",
    catalog: Annotated[str, typer.Option(help="Catalog to use: file or https address.", show_default=False)] = "",
    wait: Annotated[
        bool | None,
        typer.Option("--wait/--no-wait", "-w", help="Wait until the service answers; the default on a terminal."),
    ] = None,
    timeout: Annotated[str, typer.Option(help="Longest wait, as 10m.")] = "10m",
    dry_run: DryRun = False,
    output: Annotated[
        DeployFormat,
        typer.Option("-o", "--output", help="yaml or json only print the documents, to keep in git."),
    ] = DeployFormat.TEXT,
    kubeconfig: Kubeconfig = None,
) -> None:
    """Deploy a model, or change a service: show what would change, write it, and wait for an answer.

    A second deploy of a name changes only the options that it names. LLMKube's options work. A file may also have
    ModelRouters, ModelPools and LoRAAdapters, and is applied as it is. Exit code 2: --dry-run
    found changes. 3: the service was not ready in time; the work goes on.
    """
    from automation.cli.waiting import late_ends
    from automation.places.cluster import ClusterPlace
    from automation.places.service_documents import DeployOptions, source_of

    tokens, cluster_context = _contexts(context, kube_context)
    if max_replicas is None and min_replicas is not None:
        raise typer.BadParameter("--min-replicas needs --max-replicas")
    timeout_s = float(duration_s(timeout, "--timeout"))
    with errors_end(), late_ends():
        options = DeployOptions(
            source=source_of(source) if source else "",
            quantization=quantization,
            sha256=sha256,
            format=format_,
            accelerator=accelerator.value if accelerator else "",
            gpu=gpu,
            gpu_count=gpu_count,
            gpu_layers=gpu_layers,
            gpu_memory=gpu_memory,
            replicas=replicas,
            min_replicas=min_replicas,
            max_replicas=max_replicas,
            cpu=cpu,
            memory=memory,
            context_size=tokens,
            parallel=parallel,
            flash_attention=flash_attn,
            jinja=jinja,
            cache_type_k=cache_type_k,
            cache_type_v=cache_type_v,
            extra_args=tuple(extra_args or ()),
            runtime=runtime,
            image=image,
            node_port=node_port,
            env=_variables(env or []),
            mode=mode,
            host=host,
            idle_timeout=idle_timeout,
        )
        place = open_place(kubeconfig, cluster_context)
        where = namespace or place.default_namespace
        if Path(name).suffix in FILE_SUFFIXES:
            if options != DeployOptions():
                raise typer.BadParameter("options change a service by its NAME; write them into the file instead")
            _deploy_file(place, name, where, dry_run=dry_run, output=output)
            return
        service, documents = _documents(place, name, where, options, catalog)
        if output is not DeployFormat.TEXT:
            _print(documents, output)
            return
        if options.source.startswith("/") and isinstance(place, ClusterPlace):
            say(f"{options.source} is read on the node or host that runs the service, not on this machine", err=True)
        planned = place.plan(documents)
        say_painted(planned.text)
        if dry_run:
            raise typer.Exit(exits.WOULD_CHANGE if planned.has_changes else exits.DONE)
        place.apply(documents)
        state = place.find(f"isvc/{service}", where)
        say(f"Deployed {full_name(state)} on {place.title}", err=True)
        if wait if wait is not None else sys.stderr.isatty():
            _follow(place, state, timeout_s, replicas=replicas)
        else:
            say(f"`herdsman status {service} --watch` follows it", err=True)


def _print(documents: list[Json], output: DeployFormat) -> None:
    say_yaml(documents) if output is DeployFormat.YAML else print_json(documents)


def _deploy_file(place: Place, name: str, namespace: str, *, dry_run: bool, output: DeployFormat) -> None:
    """Show what a file would change in a cluster, and apply it; or only print its documents. Raises PlaceError."""
    from automation.cli.manifest_files import read_manifests
    from automation.places.cluster import ClusterPlace
    from automation.places.place import PlaceError
    from program.dialects.registry import LLMKUBE

    if not isinstance(place, ClusterPlace):
        raise PlaceError(f"`{name}` is a file, which is deployed to a cluster", hint="name a service, or a kubeconfig")
    manifests = read_manifests([name], namespace)
    found = (*manifests.referred, *manifests.services_of(LLMKUBE), *manifests.take_referrers())
    manifests.note_unused()
    if problems := [*manifests.errors, *manifests.notes]:
        raise PlaceError("\n".join(problems), hint="`kubectl apply -f` applies other kinds; nothing was changed")
    documents = [each.cr for each in found]
    if output is not DeployFormat.TEXT:
        _print(documents, output)
        return
    planned = place.plan(documents)
    say_painted(planned.text)
    if dry_run:
        raise typer.Exit(exits.WOULD_CHANGE if planned.has_changes else exits.DONE)
    place.apply(documents)
    say(f"Applied {len(documents)} document{'' if len(documents) == 1 else 's'} of {name} to {place.title}", err=True)


def _documents(place: Place, name: str, namespace: str, options: DeployOptions, catalog: str) -> tuple[str, list[Json]]:
    """Return the service's name and the documents. Raises PlaceError."""
    from automation.places.service_documents import check_name, documents_of

    if not options.source:
        from automation.cli.catalog_documents import catalog_documents, service_name_of

        service = service_name_of(name, catalog=catalog)
        if service and place.document("InferenceService", service, namespace) is None:
            found = catalog_documents(place, name, options, name=service, namespace=namespace, catalog=catalog)
            say(found.explanation, err=True)
            return service, list(found.documents)
        name = service or name
    check_name(name)
    live = place.document("InferenceService", name, namespace)
    model_name = str(((live or {}).get("spec") or {}).get("modelRef") or name)
    model = place.document("Model", model_name, namespace)
    if model is None and not options.source:
        _end_unknown(name, catalog)
    return name, documents_of(name, options, namespace=namespace, model=model, model_name=model_name)


def _end_unknown(name: str, catalog: str) -> None:
    """Raise PlaceError for a name that is neither a service, nor an id, with near ids."""
    from automation.catalog.loading import load
    from automation.places.near_names import did_you_mean
    from automation.places.place import PlaceError

    near = did_you_mean(name, (entry.id for entry in load(catalog).models))
    hint = "name a model with --source FILE, URL or hf://ORG/REPO/FILE"
    raise PlaceError(
        f"`{name}` is neither a service here nor a model of the catalog", hint=f"{near} Or {hint}" if near else hint
    )


def _contexts(context: str | None, kube_context: str | None) -> tuple[int | None, str | None]:
    """Split `--context`: a number means tokens, any other word a context of the kubeconfig."""
    if context is None:
        return None, kube_context
    if context.isdecimal():
        return int(context), kube_context
    if kube_context is not None and kube_context != context:
        raise typer.BadParameter(f"--context: `{context}` is no number of tokens")
    return None, context


def _variables(texts: list[str]) -> dict[str, str]:
    pairs = [text.partition("=") for text in texts]
    for (name, equals, _), text in zip(pairs, texts, strict=True):
        if not name or not equals:
            raise typer.BadParameter(f"--env: `{text}` is not NAME=VALUE")
    return {name: value for name, _, value in pairs}


def _follow(place: Place, service: ServiceState, timeout_s: float, *, replicas: int | None) -> None:
    from automation.cli.waiting import wait_until_ready

    try:
        ready = wait_until_ready(place, service, timeout_s=timeout_s, ends_stopped=replicas == 0)
    except KeyboardInterrupt:
        say(f"The deployment goes on; `herdsman status {service.name} --watch` follows it", err=True)
        raise
    say(f"{full_name(ready)} is {ready.state.value}", err=True)
    if ready.state.value != "stopped":
        _tell_how_to_use(place, ready)


def _tell_how_to_use(place: Place, service: ServiceState) -> None:
    """Print the commands that reach the service, and a curl line if it has an address that stays."""
    from automation.cli.curl import curl_line
    from automation.places.cluster import ClusterPlace
    from automation.places.place import PlaceError, State

    say(f"herdsman chat {service.name}")
    if service.state is not State.ASLEEP:  # a request would wake it
        try:
            with place.reach(service) as reached:
                if not isinstance(place, ClusterPlace) or not reached.base_url.startswith("http://127.0.0.1:"):
                    say(curl_line(reached))
                    return
        except PlaceError as error:
            say(f"{error}; {error.hint}" if error.hint else str(error), err=True)
    # A port-forward ends with its command.
    say(f"herdsman open {service.name}")
