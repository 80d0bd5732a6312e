"""Modules that the Kubernetes plugin must not import. Each run of a static fleet starts the plugin and waits for it."""

from __future__ import annotations

import subprocess
import sys

HEAVY = ("pydantic", "components.render", "components.downloader", "program.runtimes", "program.desired.service")


def test_the_kubernetes_plugin_imports_no_renderer() -> None:
    program = (
        f"import components.providers.kubernetes_plugin, sys; "
        f"print([name for name in {HEAVY!r} if name in sys.modules])"
    )
    answer = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert answer.stdout.strip() == "[]"
