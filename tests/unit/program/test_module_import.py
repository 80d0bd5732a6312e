"""The import of one module of an installed package, without the rest of the package."""

from __future__ import annotations

import subprocess
import sys

import gguf.constants
import pytest

from program.module_import import import_alone


def test_a_module_that_is_imported_already_is_returned() -> None:
    assert import_alone("gguf.constants") is gguf.constants


def test_nothing_else_of_the_package_is_imported_and_the_package_can_be_imported_later() -> None:
    program = (
        "import sys; from program.module_import import import_alone; one = import_alone('gguf.constants'); "
        "assert 'gguf' not in sys.modules and 'numpy' not in sys.modules; "
        "import gguf; assert gguf.constants.Keys.General.NAME == one.Keys.General.NAME == 'general.name'"
    )
    run = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=120)
    assert run.returncode == 0, run.stderr


@pytest.mark.parametrize("name", ["gguf.no_such", "no_such_package.module", "gguf.no_such.module"])
def test_a_module_that_is_not_there_is_named(name: str) -> None:
    with pytest.raises(ModuleNotFoundError, match=name):
        import_alone(name)
