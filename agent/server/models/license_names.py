"""Gives the common licences of models one spelling each. Pure; used by `gguf_header`."""

from __future__ import annotations

import re


def normalised_license(text: str) -> str:
    """Return the licence in its common spelling; any other text is returned as it is."""
    lowered = text.lower()
    if "apache" in lowered:
        return "apache-2.0"
    if match := re.search(r"llama[\s_-]?(\d(?:\.\d)?)", lowered):
        return f"llama-{match[1]}-community"
    if "gemma" in lowered:
        return "gemma"
    if re.search(r"\bmit\b", lowered):
        return "mit"
    return text
