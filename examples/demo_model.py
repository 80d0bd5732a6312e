"""Chooses the model of `make demo`: the catalog's smallest one for chats if its server answers, else a tiny one.

`HERDSMAN_DEMO_MODEL=tiny` or an id of the catalog decides instead. The tiny model is made on the spot and has random
weights, so that the demo works without a network; its answers are noise.
"""

from __future__ import annotations

import queue
import shutil
import threading
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import urllib3

from automation.catalog.entries import Catalog, CatalogError, Entry, Variant
from automation.catalog.fitting import Room, choose
from program.desired.hub import HUB, Hub
from program.desired.web_address import WebAddress
from program.dialects.llmkube.parse.source import parse_source

VARIABLE = "HERDSMAN_DEMO_MODEL"
TINY = "tiny"
CONTEXT = 1024
"""Tokens: the longest context of the demo."""
HEAD_TIMEOUT_S = 3.0
_SPARE_BYTES = 1 << 30
"""Space on the disk that a download leaves free."""


@dataclass(frozen=True)
class DemoModel:
    """The chosen model, and why it was chosen."""

    id: str
    """`tiny`, or the id of the catalog."""
    why: str
    source: str = ""
    """The value of spec.source; empty for the tiny model, whose file the demo makes."""
    sha256: str = ""
    bytes: int = 0
    name: str = TINY
    """The name of the Model in the cluster."""

    @property
    def is_tiny(self) -> bool:
        return not self.source

    def manifest(self, example: str, tiny_file: Path) -> str:
        """Return the example with this model in the place of its own."""
        if self.is_tiny:
            return example.replace("MODEL_FILE", str(tiny_file))
        checksum = f"\n  sha256: {self.sha256}" if self.sha256 else ""
        return (
            example.replace("source: file://MODEL_FILE", f"source: {self.source}{checksum}")
            .replace(f"name: {TINY}\n", f"name: {self.name}\n")
            .replace(f"modelRef: {TINY}\n", f"modelRef: {self.name}\n")
        )


def smallest(catalog: Catalog) -> tuple[Entry, Variant]:
    """Return the smallest model for chats, and its smallest variant of one file."""
    found = [
        (entry, variant)
        for entry in catalog.models
        if "chat" in entry.capabilities
        for variant in entry.variants
        if len(variant.files) == 1 and not variant.is_small
    ]
    return min(found, key=lambda each: each[1].bytes)


def demo_model(
    catalog: Catalog,
    environment: Mapping[str, str],
    *,
    rooms: Sequence[Room],
    folder: Path,
    answers: Callable[[str], str] | None = None,
) -> DemoModel:
    """Choose the model. `answers` returns why an address cannot be fetched; empty if it can.

    `folder` is on the disk that the model would fill. Raises CatalogError for an unknown id, and for a model of several
    files.
    """
    wanted = environment.get(VARIABLE, "").strip()
    if wanted.lower() == TINY:
        return DemoModel(TINY, f"{VARIABLE} is `{TINY}`")
    if wanted:
        entry = catalog.entry(wanted)
        single = [variant for variant in entry.by_size if len(variant.files) == 1]
        if not single or "chat" not in entry.capabilities:
            raise CatalogError(
                f"the demo cannot serve `{entry.id}`: it needs a model for chats in one file",
                hint=f"`{VARIABLE}={smallest(catalog)[0].id}` is the smallest one",
            )
        return _model(entry, single[-1], f"{VARIABLE} names it")
    entry, variant = smallest(catalog)
    why_not = _obstacle(entry, variant, environment, rooms, folder, answers or head)
    if why_not:
        return DemoModel(TINY, f"{entry.id} is not used: {why_not}")
    return _model(entry, variant, "it is the smallest model of the catalog for chats, and its server answers")


def _model(entry: Entry, variant: Variant, why: str) -> DemoModel:
    return DemoModel(
        id=entry.id,
        why=why,
        source=variant.source,
        sha256=variant.files[0].sha256 or "",
        bytes=variant.bytes,
        name=entry.default_name,
    )


def _obstacle(
    entry: Entry,
    variant: Variant,
    environment: Mapping[str, str],
    rooms: Sequence[Room],
    folder: Path,
    answers: Callable[[str], str],
) -> str:
    """Return why a model cannot be served here; empty if it can."""
    try:
        choose(entry, rooms, CONTEXT, variant.quant)
    except CatalogError as error:
        return str(error)
    existing = next(each for each in (folder, *folder.parents) if each.exists())
    free = shutil.disk_usage(existing).free
    if variant.bytes + _SPARE_BYTES > free:
        return f"{existing} has only {free >> 20:,} MiB free"
    source = parse_source(variant.source)
    hub = Hub.at(environment.get("HF_ENDPOINT") or environment.get("HERDSMAN_HUB_URL") or HUB)
    return answers(hub.location(WebAddress.parse(source.download_address)).text)


def head(url: str, *, timeout_s: float = HEAD_TIMEOUT_S) -> str:
    """Return why a server does not serve an address; empty if it does. Takes at most `timeout_s`."""
    found: queue.SimpleQueue[str] = queue.SimpleQueue()

    def ask() -> None:
        host = WebAddress.parse(url).host
        try:
            # The hub redirects to the server of its large files, which is enough to know.
            answer = urllib3.PoolManager().request("HEAD", url, timeout=timeout_s, redirect=False, retries=False)
        except urllib3.exceptions.HTTPError as error:
            found.put(f"{host} cannot be reached ({type(error).__name__})")
        else:
            found.put("" if answer.status < 400 else f"{host} answers with HTTP {answer.status}")

    # A resolver without a network may take half a minute, which no timeout of the request limits.
    threading.Thread(target=ask, name="hub", daemon=True).start()
    try:
        return found.get(timeout=timeout_s + 0.5)
    except queue.Empty:
        return f"{WebAddress.parse(url).host} does not answer within {timeout_s:g} s"
