"""`herdsman inspect SOURCE`: licence, chat template, layers and memory of a model, from its header alone."""

from __future__ import annotations

import os
from typing import Annotated, Any

import typer

from automation.catalog.entries import CatalogError, UnknownModel
from automation.catalog.fits import tokens_text
from automation.catalog.fitting import gib
from automation.catalog.inspection import Inspection, inspect_source
from automation.catalog.loading import load
from automation.cli.output import OutputFormat, complain, print_json, print_table, say, size_text
from program.desired.hub import HUB


def inspect(
    source: Annotated[
        str,
        typer.Argument(
            metavar="SOURCE",
            help="A .gguf file, its http(s) address, hf://org/repo[@revision]/file.gguf, or an id of the catalog.",
        ),
    ],
    context: Annotated[
        int | None,
        typer.Option("--context", min=128, help="Tokens of context.", show_default="some usual ones"),
    ] = None,
    template: Annotated[bool, typer.Option("--template", help="Print only the chat template.")] = False,
    output: Annotated[OutputFormat, typer.Option("-o", "--output", help="table or json.")] = OutputFormat.TABLE,
) -> None:
    """Show licence, chat template, layers and memory of a model, without downloading it.

    Of a remote file only the header is requested. HF_TOKEN opens gated repositories, SOURCE_TOKEN other servers, and
    HERDSMAN_HUB_URL names a mirror of Hugging Face.
    """
    try:
        found = inspect_source(
            _address(source), hub_url=os.environ.get("HERDSMAN_HUB_URL", HUB), environment=os.environ
        )
    except CatalogError as error:
        complain(str(error), hint=error.hint)
        raise typer.Exit(1) from None
    if template:
        if not found.template:
            complain(f"{found.source} has no chat template", hint="llama-server then uses a default template")
            raise typer.Exit(1)
        say(found.template)
    elif output is OutputFormat.JSON:
        print_json(inspection_object(found, context))
    else:
        _show(found, context)


def inspection_object(found: Inspection, context: int | None) -> dict[str, Any]:
    """Return an inspection for `-o json`."""
    facts = found.facts
    return {
        "source": found.source,
        "name": facts.name or None,
        "architecture": facts.architecture or None,
        "quant": facts.quantization or None,
        "licence": facts.license or None,
        "bytes": found.size_bytes,
        "files": found.parts,
        "context": facts.context_length,
        "layers": facts.layer_count,
        "cacheLayers": found.cache_layers,
        "windowLayers": facts.sliding_window_layers,
        "slidingWindow": facts.sliding_window,
        "heads": facts.head_count,
        "headsKV": facts.head_count_kv,
        "embeddingSize": facts.embedding_size,
        "experts": facts.expert_count,
        "vocabulary": facts.vocabulary_size,
        "template": found.template or None,
        "memory": [
            {
                "context": tokens,
                "weightsBytes": memory.weights_bytes,
                "cacheBytes": memory.cache_bytes,
                "buffersBytes": memory.compute_bytes,
                "totalBytes": memory.total_bytes,
            }
            for tokens in found.contexts(context)
            for memory in (found.memory(tokens),)
        ],
    }


def _show(found: Inspection, context: int | None) -> None:
    facts = found.facts
    parts = f" in {found.parts} files" if found.parts > 1 else ""
    lines = {
        "Source": found.source,
        "Name": facts.name or "-",
        "Architecture": facts.architecture or "-",
        "Quantisation": facts.quantization or "-",
        "Size": f"{size_text(found.size_bytes)}{parts}",
        "Licence": facts.license or "the header names none",
        "Context": f"{facts.context_length:,} tokens" if facts.context_length else "-",
        "Layers": _layers_text(found),
        "Template": _template_text(found.template),
    }
    for name, text in lines.items():
        say(f"{name + ':':<14}{text}")
    say()
    rows = []
    for tokens in found.contexts(context):
        memory = found.memory(tokens)
        sizes = (memory.weights_bytes, memory.cache_bytes, memory.compute_bytes, memory.total_bytes)
        rows.append([tokens_text(tokens), *map(gib, sizes)])
    print_table(("CONTEXT", "WEIGHTS", "KV CACHE", "BUFFERS", "MEMORY"), rows)


def _layers_text(found: Inspection) -> str:
    facts = found.facts
    if not facts.layer_count:
        return "-"
    text = str(facts.layer_count)
    if found.cache_layers != facts.layer_count:
        text += f", {found.cache_layers} of them with a KV cache"
    if facts.sliding_window and facts.sliding_window_layers:
        text += f", {facts.sliding_window_layers} of them with a window of {facts.sliding_window:,} tokens"
    if facts.expert_count:
        text += f", {facts.expert_count} experts"
    return text


def _template_text(template: str) -> str:
    if not template:
        return "none"
    tools = ", with tools" if "tools" in template else ", without tools"
    return f"{len(template):,} characters{tools}; --template prints it"


def _address(source: str) -> str:
    """Return the source of a catalog's model if there is one with this id and no such file."""
    if "/" in source or source.lower().endswith(".gguf") or os.path.exists(source):
        return source
    try:
        return load().entry(source).variants[0].source
    except UnknownModel as error:
        raise CatalogError(
            f"`{source[:200]}` is neither a file here nor an id of the catalog", hint=error.hint
        ) from None
