"""Which files of tests a marker expression leaves out as a whole, from their text. `tests/conftest.py` calls it.

pytest imports each file before it compares markers, and some files import for seconds.
"""

from __future__ import annotations

import re

_EXCLUSION = re.compile(r"not \w+( and not \w+)*")
_OF_MODULE = re.compile(r"^pytestmark = .*$", re.MULTILINE)


def is_left_out(text: str, expression: str) -> bool:
    """Return whether an expression such as `not soak and not slow` excludes all tests of a file by its `pytestmark`.

    For any other form of expression the answer is no, and pytest decides for each test.
    """
    if not _EXCLUSION.fullmatch(expression):
        return False
    marks = "".join(_OF_MODULE.findall(text))
    excluded = (each.removeprefix("not ") for each in expression.split(" and "))
    return any(re.search(rf"\bpytest\.mark\.{name}\b", marks) for name in excluded)
