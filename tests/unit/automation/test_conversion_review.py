"""ConversionReviews: converted objects, refused ones, and that no request ends the server."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from automation.settings import Settings
from automation.webhook import review
from automation.webhook.review import ReviewInvalid, answer
from kubeapi.json_types import Json

HUB, SPOKE = "serving.kserve.io/v1alpha2", "serving.kserve.io/v1alpha1"


def _review(objects: Any, desired: Any = HUB) -> bytes:
    request = {"uid": "u", "desiredAPIVersion": desired, "objects": objects}
    return json.dumps(
        {"apiVersion": "apiextensions.k8s.io/v1", "kind": "ConversionReview", "request": request}
    ).encode()


def _response(body: bytes) -> Json:
    answered = json.loads(answer(body))
    assert (answered["apiVersion"], answered["kind"]) == ("apiextensions.k8s.io/v1", "ConversionReview")
    found: Json = answered["response"]
    assert found["uid"] == "u"
    return found


def _service(version: str, **model: Any) -> Json:
    return {"apiVersion": version, "kind": "LLMInferenceService", "metadata": {"name": "a"}, "spec": {"model": model}}


def test_all_objects_of_a_review_are_converted_in_order() -> None:
    critical = _service(SPOKE, criticality="Critical")
    found = _response(_review([critical, _service(HUB), {**critical, "kind": "LLMInferenceServiceConfig"}]))
    assert found["result"] == {"status": "Success"}
    first, second, third = found["convertedObjects"]
    assert first["metadata"]["annotations"] == {"internal.serving.kserve.io/model-criticality": "Critical"}
    assert second == _service(HUB)
    assert (third["apiVersion"], third["kind"]) == (HUB, "LLMInferenceServiceConfig")


@pytest.mark.parametrize(
    "body",
    [
        _review([_service(SPOKE)], "serving.kserve.io/v9"),
        _review([_service(SPOKE)], None),
        _review({}),
        _review([1]),
        _review([_service("v1")]),
        _review([{**_service(SPOKE), "kind": "Secret"}]),
        _review([{**_service(SPOKE), "kind": ["LLMInferenceService"]}]),
        _review([{**_service(SPOKE), "apiVersion": {}}]),
        _review([{**_service(SPOKE), "metadata": []}]),
    ],
)
def test_what_cannot_be_converted_is_a_failure_for_who_asked(body: bytes) -> None:
    found = _response(body)
    assert found["result"]["status"] == "Failure"
    assert found["result"]["message"]
    assert "convertedObjects" not in found


@pytest.mark.parametrize(
    "body", [b"", b"{", b"[]", b"null", b'{"request": 1}', b'{"request": {}}', b"\xff", b"[" * 9999]
)
def test_what_is_no_review_has_no_answer(body: bytes) -> None:
    with pytest.raises(ReviewInvalid):
        answer(body)


_json = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner, max_size=3),
    max_leaves=8,
)


@settings(deadline=None)
@given(
    st.fixed_dictionaries(
        {},
        optional={
            "spec": st.fixed_dictionaries({}, optional={"model": _json, "router": _json, "prefill": _json}),
            "status": st.fixed_dictionaries({}, optional={"addresses": _json, "router": _json}),
            "metadata": st.fixed_dictionaries({}, optional={"annotations": _json, "name": st.just("a")}),
        },
    ),
    st.sampled_from([(SPOKE, HUB), (HUB, SPOKE)]),
)
@pytest.mark.slow
def test_no_object_is_too_odd_to_be_converted(parts: Json, versions: tuple[str, str]) -> None:
    obj = {"apiVersion": versions[0], "kind": "LLMInferenceService", **parts}
    assert _response(_review([obj], versions[1]))["result"] == {"status": "Success"}


def test_a_conversion_that_breaks_is_a_failure_and_shows_nothing(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def breaks(obj: Json) -> Json:
        raise KeyError(obj["spec"]["model"]["uri"])

    monkeypatch.setitem(review._CONVERT, HUB, breaks)
    found = _response(_review([_service(SPOKE, uri="s3://key:hush@bucket")]))
    assert found["result"] == {"status": "Failure", "message": "cannot be converted: KeyError"}
    assert "A conversion failed" in caplog.text
    assert "hush" not in caplog.text


@pytest.mark.parametrize(
    ("written", "read"),
    [("", None), ("ns/svc", ("ns", "svc", 443)), ("ns/svc:9443", ("ns", "svc", 9443))],
)
def test_a_service_before_the_loop(written: str, read: tuple[str, str, int] | None) -> None:
    assert Settings(conversion_service=written).conversion_service_port == read


@pytest.mark.parametrize("written", ["svc", "ns/svc:0", "ns/svc/x", "ns/svc:x", "NS/svc", "/svc"])
def test_a_service_that_makes_no_sense(written: str) -> None:
    with pytest.raises(ValueError, match="neither `namespace/name`"):
        Settings(conversion_service=written)
