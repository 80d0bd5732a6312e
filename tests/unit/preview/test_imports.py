"""Modules that a preview must not import, because they are slow."""

from __future__ import annotations

import subprocess
import sys

HEAVY = (
    "pulumi",
    "grpc",
    "google.protobuf",
    "structlog",
    "asyncio",
    "rich.console",
    "agent.contract",
)
"""Modules that are slow to import, and that a preview of services in pods does not need."""


def test_a_preview_imports_neither_the_engine_nor_the_loop() -> None:
    modules = "cli.main, automation.cli.preview, automation.preview.requests, automation.preview.report"
    program = (
        f"import automation.{modules}, automation.preview.loop_options, sys; "
        f"print([name for name in {HEAVY!r} if name in sys.modules])"
    )
    answer = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert answer.stdout.strip() == "[]"
