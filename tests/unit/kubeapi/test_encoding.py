"""Request bodies are encoded as Go's encoding/json encodes the same values."""

from __future__ import annotations

import json
from typing import Any

import pytest

from kubeapi.encoding import encoded


@pytest.mark.parametrize(
    ("value", "text"),
    [
        ({"b": 1, "a": [True, None, "x"]}, '{"a":[true,null,"x"],"b":1}'),
        ({"é": "ü", "z": "\U0001f600"}, '{"z":"\U0001f600","é":"ü"}'),
        ("a<b>&c", '"a\\u003cb\\u003e\\u0026c"'),
        ("line\u2028and\u2029", '"line\\u2028and\\u2029"'),
        ('"\\\n\r\t\b\f\x1f\x7f', '"\\"\\\\\\n\\r\\t\\b\\f\\u001f\x7f"'),
        ("lone \ud800 surrogate", '"lone \ufffd surrogate"'),
        ('1e-07 and 2.50 in a string, \\" too', '"1e-07 and 2.50 in a string, \\\\\\" too"'),
        ([0.5, -2.5, 1.0, -0.0, 100.0], "[0.5,-2.5,1,0,100]"),
        ([1e-5, 1e-6, 1e-7, -1.25e-9], "[0.00001,0.000001,1e-7,-1.25e-9]"),
        ([1e20, 1e21, 1.5e300], "[100000000000000000000,1e+21,1.5e+300]"),
        (
            [2**63 - 1, -(2**63), 12345678901234567890],
            "[9223372036854775807,-9223372036854775808,12345678901234567000]",
        ),
    ],
)
def test_a_value_is_encoded_as_go_encodes_it(value: Any, text: str) -> None:
    assert encoded(value).decode() == text
    assert encoded(json.loads(text)).decode() == text, "encoding it again changes nothing"


def test_a_number_that_json_does_not_have_is_refused() -> None:
    with pytest.raises(ValueError, match="JSON"):
        encoded({"a": float("nan")})
