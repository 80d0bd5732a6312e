"""Compares the entries of a catalog with the files that they name: whether these exist, their sizes, their headers.

Called by `herdsman catalog check`. Of each file only the header is requested.
"""

from __future__ import annotations

from collections.abc import Mapping

from automation.catalog.entries import Entry, Variant
from automation.catalog.inspection import Inspection, InspectionFailed, inspect_source, size_of_source
from automation.console.check import Check

_ROUNDED_SHARE = 0.01
"""How far a rounded size may be from the real one."""


def check_entry(entry: Entry, *, hub_url: str, environment: Mapping[str, str]) -> list[Check]:
    """Check all variants of a model. Errors of a file are results, and not raised."""
    return [_check(entry, variant, hub_url=hub_url, environment=environment) for variant in entry.by_size]


def differences(entry: Entry, variant: Variant, found: Inspection) -> list[str]:
    """Return where an entry differs from its file, one text for each field."""
    texts = []
    allowed = variant.bytes * _ROUNDED_SHARE if variant.is_rounded else 0
    if not found.size_bytes:
        texts.append("the server does not say how large the files are")
    elif abs(found.size_bytes - variant.bytes) > allowed:
        texts.append(f"bytes is {variant.bytes}, the files have {found.size_bytes}")
    if found.parts != len(variant.files):
        texts.append(f"files has {len(variant.files)}, the model has {found.parts}")
    facts = found.facts
    if entry.context and facts.context_length and entry.context != facts.context_length:
        texts.append(f"context is {entry.context}, the header has {facts.context_length}")
    for name, value in entry.header.model_dump(exclude_defaults=True).items() if entry.header else ():
        real = getattr(facts, name)
        if real != value:
            texts.append(f"header.{name} is {value}, the header has {real}")
    return texts


def _check(entry: Entry, variant: Variant, *, hub_url: str, environment: Mapping[str, str]) -> Check:
    name = f"{entry.id} {variant.quant}"
    source = f"{variant.repository_address}/{variant.files[0].path}"
    projector = variant.projector
    try:
        found = inspect_source(source, hub_url=hub_url, environment=environment)
        wrong = differences(entry, variant, found)
        if projector is not None:
            address = f"{variant.repository_address}/{projector.path}"
            size = size_of_source(address, hub_url=hub_url, environment=environment)
            allowed = projector.bytes * _ROUNDED_SHARE if projector.rounded else 0
            if size is None:
                wrong.append(f"projector.bytes is {projector.bytes}, and the server does not say the size of the file")
            elif abs(size - projector.bytes) > allowed:
                wrong.append(f"projector.bytes is {projector.bytes}, the file has {size}")
    except InspectionFailed as error:
        return Check(name, "failed", str(error), error.hint)
    if wrong:
        return Check(name, "failed", "; ".join(wrong), "correct the entry")
    if entry.unchecked:
        confirmed = f"the file has the same {', '.join(entry.unchecked)}, whose source was not yet checked"
        return Check(name, "ok", f"{found.size_bytes} bytes; {confirmed}", "remove `unchecked` from the entry")
    return Check(name, "ok", f"{found.size_bytes} bytes", "")
