"""What a static fleet lacks is named, with what to do instead."""

from __future__ import annotations

from program.desired.engines import LlamaCpp, SecretKey
from program.desired.service import HostPlacement
from program.static.without_loop import unsupported_without_loop
from tests.support.builders import service


def test_a_key_that_only_the_loop_makes_has_to_be_made_by_hand() -> None:
    key = SecretKey(name="chat-engine-key", key="api-key")
    annotations = {"herdsman.dev/engine-key": "true"}
    [problem] = unsupported_without_loop(annotations, service(engine_key=key, api_key=key))
    assert problem.field == "metadata.annotations[herdsman.dev/engine-key]"
    assert "create Secret `chat-engine-key`" in problem.message
    assert list(unsupported_without_loop({}, service())) == []


def test_a_service_on_a_host_without_a_context_is_told_the_one_that_a_fleet_uses() -> None:
    on_host = HostPlacement(host="mac")
    [problem] = unsupported_without_loop({}, service(engine=LlamaCpp(), host_placement=on_host))
    assert problem.field == "spec.contextSize" and "2,048 tokens" in problem.message
    assert list(unsupported_without_loop({}, service(engine=LlamaCpp(), host_placement=on_host), connected=True)) == []
    sized = service(engine=LlamaCpp(context_size=4096), host_placement=on_host)
    assert list(unsupported_without_loop({}, sized)) == []
    assert list(unsupported_without_loop({}, service(engine=LlamaCpp()))) == []
