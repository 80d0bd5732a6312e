"""Units of fields, by the end of their path. Called by `crds.py`."""

from __future__ import annotations

import re

UNITS = (
    ("seconds", r"(Seconds|TimeoutS|GraceS|DwellS|latencyThreshold)"),
    (
        "bytes",
        r"(Bytes|ContentLength|status\.download\.(bytes|total)|accelerators\[\]\.memory"
        r"|(allocatable|capacity|processes\[\])\.memory|processes\[\]\.reserved)",
    ),
    ("percent", r"([Pp]ercent|targetAverageUtilization|objective)"),
    ("tokens per second", r"tokensPerSecond"),
    ("GB", r"OffloadGB"),
    ("GiB", r"LimitGiB"),
    ("size, such as `50GB`", r"CacheMaxSize"),
    ("duration, such as `28d`", r"slo\.window"),
    (
        "share of 1",
        r"(memoryFraction|gpuMemoryUtilization|memFractionStatic|GpuMemoryFraction|acceptThreshold\w+|pMin"
        r"|memoryPressure\.(critical|warning))",
    ),
    (
        "quantity",
        r"(status\.memory\.\w+|hostMemory|targetAverageValue|resources\.(cpu|gpuMemory|memory)|gpu\.memory"
        r"|memoryBudget|usedMemory)",
    ),
    (
        "tokens",
        r"([bB]atchSize|contextSize|reasoningBudget|originalContext|chunkedPrefillSize|contextLength|eagleTopK"
        r"|numDraftTokens|nDraftMax|maxNumTokens|maxSeqLen|maxInputLength|maxTotalTokens|maxModelLen|maxNumBatchedTokens"
        r"|numSpeculativeTokens|slidingWindow|vocabularySize)",
    ),
)
"""Each unit with a pattern for the ends of paths. The first that matches counts."""
_PATTERNS = tuple((unit, re.compile(rf"(?:{pattern})$")) for unit, pattern in UNITS)
_NOT = re.compile(r"maxBatchSize$")
"""Counts of requests, which have no unit."""


def unit_by_name(path: str) -> str:
    """Return the unit of a field; empty for a field without one, such as a count, a port or an ID."""
    if _NOT.search(path):
        return ""
    return next((unit for unit, pattern in _PATTERNS if pattern.search(path)), "")
