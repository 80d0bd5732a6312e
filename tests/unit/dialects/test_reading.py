"""The messages for fields that do not match their schema."""

from __future__ import annotations

from typing import Annotated, Any, Literal

import pytest
from pydantic import Field, StringConstraints

from program.desired.errors import SpecInvalid
from program.dialects.crds.reading import read
from program.dialects.crds.schema import CrdModel


class Inner(CrdModel):
    name: str = Field(min_length=1, max_length=4)


class Outer(CrdModel):
    inner: Inner | None = None
    many: list[int] = Field(default=[], max_length=2)
    truth: bool = False
    share: float = Field(default=0.5, ge=0, le=1)
    choice: Literal["lru", "arc"] = "lru"
    share_of: int | Annotated[str, StringConstraints(pattern="^[0-9]{1,2}%$")] = 0
    size: int | Annotated[str, StringConstraints(pattern="^[0-9]+Gi$")] = 0
    form: str = Field(default="a", pattern="^a+$")
    env: dict[str, str] = {}


@pytest.mark.parametrize(
    ("value", "field", "why"),
    [
        ([], "spec", "is not an object"),
        ("text", "spec", "`text` is not an object"),
        ({"inner": "x"}, "spec.inner", "`x` is not an object"),
        ({"inner": {}}, "spec.inner.name", "is missing"),
        ({"inner": {"name": 5}}, "spec.inner.name", "`5` is not a string; put it in quotes"),
        ({"inner": {"name": ""}}, "spec.inner.name", "is empty"),
        ({"inner": {"name": "abcde"}}, "spec.inner.name", "`abcde` is longer than 4 characters"),
        ({"many": {}}, "spec.many", "is not a list"),
        ({"many": [1, "x"]}, "spec.many[1]", "`x` is not a whole number"),
        ({"many": [1.5]}, "spec.many[0]", "`1.5` is not a whole number"),
        ({"many": [1, 2, 3]}, "spec.many", "has 3 entries; at most 2 are allowed"),
        ({"truth": "no"}, "spec.truth", "`no` is not true or false"),
        ({"share": 2}, "spec.share", "`2` is greater than 1.0"),
        ({"share": -1}, "spec.share", "`-1` is less than 0.0"),
        ({"choice": "fifo"}, "spec.choice", "`fifo` is none of 'lru' or 'arc'"),
        ({"shareOf": "150%"}, "spec.shareOf", "`150%` is neither a whole number nor a percentage up to 100%"),
        ({"size": "lots"}, "spec.size", "`lots` is not a quantity; write for example `10Gi`"),
        ({"size": []}, "spec.size", "is neither a whole number nor a string"),
        ({"form": "b"}, "spec.form", "`b` is not of the form ^a+$"),
        ({"env": {"KEY": 7}}, "spec.env.KEY", "is not a string; put it in quotes"),
    ],
)
def test_a_wrong_field_is_told_in_words(value: Any, field: str, why: str) -> None:
    with pytest.raises(SpecInvalid) as refused:
        read(Outer, value, field="spec")
    assert (refused.value.field, refused.value.why) == (field, why)
