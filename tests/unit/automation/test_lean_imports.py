"""A loop does not import the parts of libraries that it does not use. Each test runs a new interpreter."""

from __future__ import annotations

import subprocess
import sys

LEAN = """
import sys
from automation.startup.lean_imports import import_protocol_without_sdk, import_structlog_without_rich
import_protocol_without_sdk()
import_structlog_without_rich()
"""


def printed(script: str) -> list[str]:
    run = subprocess.run([sys.executable, "-c", LEAN + script], capture_output=True, text=True, check=True, timeout=120)
    return run.stdout.split()


def test_a_loop_imports_neither_the_sdk_nor_rich_nor_cryptography() -> None:
    unused = "{'pulumi', 'pulumi.runtime', 'dill', 'opentelemetry', 'rich', 'pygments', 'cryptography'}"
    found = printed(
        f"import automation.cli.run, automation.settings, automation.loop; print(*({unused} & set(sys.modules)))"
    )
    assert found == []


def test_a_loop_imports_the_modules_of_rare_objects_when_there_is_one() -> None:
    rare = (
        "automation.hosts.ssh_worker",  # hosts over SSH
        "agent.server.processes.supervisor",
        "components.policies.in_force",  # a folder of policies
        "automation.preview.previewer",  # services in mode Preview
        "program.dialects.llmkube.schema.model_router",
        "program.dialects.kserve.dialect",
        "program.dialects.llmaz.dialect",
        "pydantic_settings",
        "argparse",
    )
    found = printed(
        f"import automation.cli.run, automation.settings, automation.loop; print(*({set(rare)!r} & set(sys.modules)))"
    )
    assert found == []


def test_the_sdk_can_be_imported_later_and_has_the_same_messages() -> None:
    script = """
from pulumi.runtime.proto.resource_pb2 import RegisterResourceRequest
import pulumi
from pulumi.runtime import proto, settings
from pulumi.runtime.proto import resource_pb2
print(resource_pb2.RegisterResourceRequest is RegisterResourceRequest, hasattr(pulumi, "ComponentResource"))
"""
    assert printed(script) == ["True", "True"]


def test_rich_can_be_imported_later_and_lines_are_written_on_both_formats() -> None:
    script = """
import io, structlog, rich.console
from automation.telemetry.logs import configure_logging
for form in ("json", "console"):
    configure_logging(form, stream=(out := io.StringIO()))
    try:
        raise ValueError("broken")
    except ValueError:
        structlog.get_logger("test").exception("failed")
    print("ValueError: broken" in out.getvalue())
"""
    assert printed(script) == ["True", "True"]
