"""Imports two libraries without the parts that a loop does not use (ADR 90).

`herdsman run` calls it before it imports the loop. Both functions do nothing if the library was imported before.
"""

from __future__ import annotations

import importlib
import sys
from importlib.machinery import PathFinder
from importlib.util import module_from_spec

SDK = ("pulumi", "pulumi.runtime")
PROTOCOL = "pulumi.runtime.proto"


def import_protocol_without_sdk() -> None:
    """Import the messages of Pulumi's protocol, but not the SDK, whose packages contain them.

    The loop registers by the protocol (ADR 52). An `import` of the messages also runs the packages above them, which
    import the whole SDK, OpenTelemetry and dill: 6 MB. So the messages are imported below empty packages, which are
    removed afterwards. A later `import pulumi` therefore imports the SDK as usual, with the same messages.
    """
    if SDK[0] in sys.modules:
        return
    where = None
    try:
        for name in SDK:
            spec = PathFinder.find_spec(name, where)
            if spec is None:
                return
            sys.modules[name] = module_from_spec(spec)
            where = sys.modules[name].__path__
        importlib.import_module(PROTOCOL)
    finally:
        for name in SDK:
            sys.modules.pop(name, None)


def import_structlog_without_rich() -> None:
    """Import structlog as if rich were not installed: 4 MB with the lexers of pygments.

    structlog imports rich for the tracebacks of its console renderer. Lines in JSON do not use it.
    """
    if "structlog" in sys.modules or "rich" in sys.modules:
        return
    sys.modules["rich"] = None  # type: ignore[assignment]  # an import of a name with None raises ImportError
    try:
        importlib.import_module("structlog")
    finally:
        del sys.modules["rich"]
