"""The files that pytest does not import because their marker is excluded."""

from __future__ import annotations

import pytest

from tests.support.marked_files import is_left_out

MARKED = "import pytest\n\npytestmark = pytest.mark.soak\n"
LISTED = 'import pytest\n\npytestmark = [pytest.mark.usefixtures("loop"), pytest.mark.soak]\n'
SINGLE = "import pytest\n\n@pytest.mark.soak\ndef test_a(): pass\n"


@pytest.mark.parametrize(
    ("text", "expression", "left_out"),
    [
        (MARKED, "not soak", True),
        (MARKED, "not soak and not nightly", True),
        (LISTED, "not nightly and not soak", True),
        (MARKED, "not nightly", False),
        (MARKED, "not soaked", False),
        (MARKED, "soak and not nightly", False),
        (MARKED, "not soak or slow", False),
        (MARKED, "", False),
        (SINGLE, "not soak", False),
        ("def test_a(): pass\n", "not soak", False),
    ],
)
def test_only_a_plain_exclusion_of_the_modules_marker_leaves_a_file_out(
    text: str, expression: str, left_out: bool
) -> None:
    assert is_left_out(text, expression) is left_out
