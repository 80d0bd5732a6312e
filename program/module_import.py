"""Imports one module of an installed package without the rest of the package.

`gguf.constants` needs the standard library only. The `__init__` of its package imports numpy, which costs 0.2 s of CPU
and 20 MB at each start (ADR 47). Called by `agent.server.models.gguf_format`.
"""

from __future__ import annotations

import importlib.util
import sys
from pathlib import Path
from typing import Any


def import_alone(name: str) -> Any:
    """Import the module `name` (`package.module`) without running the `__init__` of the packages above it.

    The module must have no relative imports. A module that is already imported is returned as it is. A new module is
    not added to `sys.modules`, so a later `import` of the package loads it again. Raises ModuleNotFoundError.
    """
    if name in sys.modules:
        return sys.modules[name]
    package, *folders, last = name.split(".")
    parent = importlib.util.find_spec(package)
    for root in parent.submodule_search_locations or () if parent else ():
        path = Path(root, *folders, f"{last}.py")
        spec = importlib.util.spec_from_file_location(name, path) if path.is_file() else None
        if spec is not None and spec.loader is not None:
            module = importlib.util.module_from_spec(spec)
            spec.loader.exec_module(module)
            return module
    raise ModuleNotFoundError(f"no module named {name!r} is installed", name=name)
