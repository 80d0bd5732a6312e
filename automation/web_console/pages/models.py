"""The Models of all namespaces, with the progress of their downloads."""

from __future__ import annotations

from collections.abc import Sequence

from automation.places.cluster_states import download_of
from automation.web_console.html import Child, Html, table, tag
from automation.web_console.pages.fleet import bar_of
from kubeapi.json_types import Json


def page(models: Sequence[Json]) -> Html:
    """Return the table of the Models."""
    titles = ("Model", "Namespace", "Phase", "Download", "Size", "Architecture", "Quantization", "Source")
    return table(titles, [_row(each) for each in models], empty="There is no Model.")


def _row(model: Json) -> list[Child]:
    metadata, spec, status = model["metadata"], model.get("spec") or {}, model.get("status") or {}
    gguf = status.get("gguf") or {}
    return [
        str(metadata["name"]),
        str(metadata.get("namespace") or ""),
        str(status.get("phase") or "Unknown"),
        bar_of(download) if (download := download_of(model)) is not None else "",
        str(status.get("size") or ""),
        str(gguf.get("architecture") or ""),
        str(gguf.get("quantization") or spec.get("quantization") or ""),
        tag("code", str(spec.get("source") or "")),
    ]
