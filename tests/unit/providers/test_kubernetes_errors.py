"""The provider's errors for refused requests. The messages of the API server below are those of a real 1.34."""

from __future__ import annotations

import pytest

from components.providers.kubernetes_errors import Code, immutable_fields, refusal, struck
from kubeapi import errors
from kubeapi.errors import Cause


def invalid(*causes: tuple[str, str]) -> errors.Invalid:
    made = tuple(Cause(field=field, message=message, reason="FieldValueInvalid") for field, message in causes)
    return errors.Invalid(422, "Invalid", "it is invalid", made)


@pytest.mark.parametrize(
    ("field", "message"),
    [
        ("spec.selector", 'Invalid value: {"matchLabels":{"a":"b"}}: field is immutable'),
        ("spec.clusterIPs[0]", 'Invalid value: ["10.0.0.1"]: may not change once set'),
        ("spec", "Forbidden: spec is immutable after creation except resources.requests\n@@ -6,7 @@"),
        ("spec", "Forbidden: updates to statefulset spec for fields other than 'replicas' are forbidden"),
        ("spec", "Forbidden: pod updates may not change fields other than `spec.containers[*].image`"),
        ("roleRef", "Invalid value: {}: cannot change roleRef"),
        ("data", "Forbidden: field is immutable when `immutable` is set"),
    ],
)
def test_immutable_fields_are_known_by_what_the_api_says(field: str, message: str) -> None:
    assert immutable_fields(invalid((field, message))) == (field,)


def test_another_fault_beside_an_immutable_field_means_that_a_new_object_would_fail_too() -> None:
    fault = ("spec.template.metadata.labels", "Invalid value: {}: `selector` does not match template `labels`")
    assert immutable_fields(invalid(fault, ("spec.selector", "Invalid value: {}: field is immutable"))) == ()
    assert immutable_fields(invalid(fault)) == ()
    assert immutable_fields(invalid()) == ()


def denied(webhook: str, told: str) -> errors.Forbidden:
    return errors.Forbidden(403, "Forbidden", f'admission webhook "{webhook}" denied the request: {told}')


_SUB_GROUP_SIZE = "spec.leaderWorkerTemplate.SubGroupPolicy.subGroupSize: Invalid value: "


@pytest.mark.parametrize(
    "why",
    [
        "4: field is immutable",
        "4: cannot enable subGroupSize after the lws is already created",
        "2: cannot remove subGroupSize after enabled",
    ],
)
def test_what_the_webhook_of_leader_worker_sets_calls_immutable_is_so(why: str) -> None:
    fields = immutable_fields(denied("vleaderworkerset.kb.io", f"{_SUB_GROUP_SIZE}{why}"))
    assert fields == ("spec.leaderWorkerTemplate.subGroupPolicy.subGroupSize",)


def test_another_fault_that_the_webhook_names_would_meet_the_new_object_too() -> None:
    other = "spec.leaderWorkerTemplate.size: Invalid value: 0: size must be equal or greater than 1"
    both = f"[{other}, {_SUB_GROUP_SIZE}4: field is immutable]"
    assert immutable_fields(denied("vleaderworkerset.kb.io", both)) == ()
    assert immutable_fields(denied("vleaderworkerset.kb.io", other)) == ()
    twice = f"[{_SUB_GROUP_SIZE}4: field is immutable, {_SUB_GROUP_SIZE}4: field is immutable]"
    assert len(immutable_fields(denied("vleaderworkerset.kb.io", twice))) == 2


def test_a_rule_of_the_cluster_is_not_got_around_by_a_new_object() -> None:
    assert immutable_fields(denied("validate.kyverno.svc-fail", "spec.x: Forbidden: field is immutable")) == ()
    assert immutable_fields(errors.Forbidden(403, "Forbidden", "spec.x: Invalid value: 1: field is immutable")) == ()


def test_a_shrunk_claim_is_no_reason_for_a_new_one() -> None:
    cause = ("spec.resources.requests.storage", "Forbidden: field can not be less than status.capacity")
    assert immutable_fields(invalid(cause)) == ()


def test_each_cause_stands_once_with_its_field_and_its_first_line() -> None:
    error = invalid(("spec.a", "Required value"), ("spec.a", "Required value"), ("spec.b", "Too long\n@@ diff @@"))
    refused = refusal(error, "create Deployment `n/x`")
    assert refused.code is Code.INVALID_ARGUMENT
    assert refused.message.splitlines() == [
        "could not create Deployment `n/x`: the API server refused it as invalid",
        "  - spec.a: Required value",
        "  - spec.b: Too long",
        "Correct the fields named above.",
    ]


def test_fields_that_the_schema_does_not_know_are_named() -> None:
    message = (
        "failed to create typed patch object (default/t3; apps/v1, Kind=Deployment): errors:\n"
        "  .spec.foo: field not declared in schema\n"
        "  .spec.replicas: expected numeric (int or float), got string"
    )
    refused = refusal(errors.ServerError(500, "InternalError", message), "create Deployment `n/x`")
    assert refused.code is Code.INVALID_ARGUMENT
    assert "  - spec.foo: field not declared in schema" in refused.message
    assert "  - spec.replicas: expected numeric (int or float), got string" in refused.message


@pytest.mark.parametrize(
    ("error", "code", "advice"),
    [
        (errors.NotFound(404, "NotFound", 'namespaces "n" not found'), Code.NOT_FOUND, "Create the namespace first"),
        (errors.KindNotServed(404, "NotFound", "x serves no kind"), Code.NOT_FOUND, "CustomResourceDefinition"),
        (errors.Unauthorized(401, "Unauthorized", "x"), Code.UNAUTHENTICATED, "renew the kubeconfig"),
        (
            errors.Forbidden(403, "Forbidden", 'User "u" cannot patch resource "deployments"'),
            Code.PERMISSION_DENIED,
            "by RBAC",
        ),
        (errors.Forbidden(403, "Forbidden", "exceeded quota: q"), Code.PERMISSION_DENIED, "ResourceQuota"),
        (
            errors.Forbidden(403, "Forbidden", "because it is being terminated"),
            Code.PERMISSION_DENIED,
            "wait for the end",
        ),
        (errors.Forbidden(403, "Forbidden", "denied by webhook"), Code.PERMISSION_DENIED, "admission rule"),
        (errors.Conflict(409, "Conflict", "x"), Code.ABORTED, "run again"),
        (errors.TooManyRequests(429, "TooManyRequests", "x"), Code.RESOURCE_EXHAUSTED, "overloaded"),
        (errors.Unreachable("refused"), Code.UNAVAILABLE, "you can safely run again"),
        (errors.ServerError(503, "ServiceUnavailable", "x"), Code.UNAVAILABLE, "you can safely run again"),
    ],
)
def test_each_refusal_says_what_to_do(error: errors.ApiError, code: Code, advice: str) -> None:
    refused = refusal(error, "update Service `n/x`")
    assert refused.code is code
    assert refused.message.startswith("could not update Service `n/x`: ")
    assert advice in refused.message


def test_secrets_are_struck_from_messages_the_longest_first() -> None:
    assert struck("got abcdef and abc", ["abc", "abcdef"]) == "got [secret] and [secret]"
    assert struck("a word", ["a"]) == "a word"
    assert "hunter2" not in refusal(invalid(("a", "Invalid value: hunter2")), "x", ["hunter2"]).message
