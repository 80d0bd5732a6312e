"""The log: form, levels, bound keys, and values that must never be in it."""

from __future__ import annotations

import ast
import io
import json
import logging
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import structlog
from hypothesis import given
from hypothesis import strategies as st

from automation.telemetry.logs import REDACTED, RESERVED, configure_logging, redact
from tests.support.packages import PACKAGES

pytestmark = pytest.mark.slow


@pytest.fixture
def stream() -> Iterator[io.StringIO]:
    root = logging.getLogger()
    handlers, level = list(root.handlers), root.level
    out = io.StringIO()
    configure_logging("json", "info", stream=out)
    yield out
    structlog.contextvars.clear_contextvars()
    structlog.reset_defaults()
    root.handlers[:] = handlers
    root.setLevel(level)


def lines(stream: io.StringIO) -> list[dict[str, Any]]:
    return [json.loads(line) for line in stream.getvalue().splitlines()]


def test_our_own_lines_carry_their_keys_and_what_the_worker_bound(stream: io.StringIO) -> None:
    with structlog.contextvars.bound_contextvars(key="prod/a"):
        structlog.get_logger().info("Updated stack", changed=3)
    (line,) = lines(stream)
    assert {k: line[k] for k in ("event", "level", "changed", "key")} == {
        "event": "Updated stack",
        "level": "info",
        "changed": 3,
        "key": "prod/a",
    }
    assert line["timestamp"].endswith("Z")


def test_lines_of_the_standard_library_come_in_the_same_form(stream: io.StringIO) -> None:
    logging.getLogger("kubeapi.informer").warning("Lost the watch of %s", "pods", extra={"failures": 2})
    (line,) = lines(stream)
    assert (line["event"], line["level"], line["logger"], line["failures"]) == (
        "Lost the watch of pods",
        "warning",
        "kubeapi.informer",
        2,
    )


def test_single_requests_of_libraries_stay_out_until_debug(stream: io.StringIO) -> None:
    logging.getLogger("urllib3.connectionpool").info("Starting new HTTPS connection")
    structlog.get_logger().debug("Not wanted")
    assert lines(stream) == []


def test_an_exception_is_rendered_and_cleared_of_secrets(stream: io.StringIO) -> None:
    try:
        raise RuntimeError("refused Authorization: Bearer abc.def.ghi")
    except RuntimeError:
        structlog.get_logger().exception("Failed")
    (line,) = lines(stream)
    assert "RuntimeError" in line["exception"]
    assert "abc.def.ghi" not in stream.getvalue()


def test_an_unknown_level_is_refused() -> None:
    with pytest.raises(ValueError, match="loud"):
        configure_logging("json", "loud")


def test_a_console_without_a_terminal_has_no_colours(stream: io.StringIO) -> None:
    out = io.StringIO()
    configure_logging("console", "info", stream=out)
    structlog.get_logger().info("Started", services=3)
    assert "Started" in out.getvalue()
    assert "\x1b[" not in out.getvalue()


@pytest.mark.parametrize(
    "key",
    ["authorization", "Authorization", "token", "hf_token", "accessToken", "password", "PULUMI_CONFIG_PASSPHRASE",
     "clientSecret", "api_key", "x-api-key", "client-key-data"],
)  # fmt: skip
def test_values_of_secret_keys_are_blanked_at_any_depth(key: str) -> None:
    event = redact(None, "info", {"event": "x", "headers": [{"inner": {key: "s3cret"}}]})
    assert event["headers"] == [{"inner": {key: REDACTED}}]


@pytest.mark.parametrize("key", ["max_tokens", "tokens", "secretKeyRef", "key", "keys", "cache_key", "token_count"])
def test_harmless_keys_are_kept(key: str) -> None:
    assert redact(None, "info", {key: "512"}) == {key: "512"}


def test_a_number_is_no_secret_whatever_its_key() -> None:
    assert redact(None, "info", {"token": 7}) == {"token": 7}


@pytest.mark.parametrize(
    "text",
    [
        "GET / Authorization: Bearer {}",
        "authorization=Basic {}",
        "token={}&x=1",
        "password: '{}'",
        "PULUMI_CONFIG_PASSPHRASE={} pulumi up",
        "postgres://herdsman:{}@db/state",
        '{{"api_key": "{}"}}',
    ],
)
def test_secrets_inside_text_are_blanked(text: str) -> None:
    event = redact(None, "info", {"event": text.format("hunter2hunter2")})
    assert "hunter2" not in event["event"]
    assert REDACTED in event["event"]


@given(
    st.dictionaries(
        st.text(max_size=8),
        st.recursive(st.none() | st.integers() | st.text(max_size=30), lambda inner: st.lists(inner, max_size=3)),
        max_size=4,
    )
)
def test_redaction_keeps_the_shape_of_any_event(event: dict[str, Any]) -> None:
    assert redact(None, "info", dict(event)).keys() == event.keys()


def test_no_line_uses_a_key_that_the_renderers_treat_apart() -> None:
    root = Path(__file__).resolve().parents[3]
    keyword = re.compile(rf"\b({'|'.join(RESERVED)})\s*=")
    methods = {"debug", "info", "warning", "error", "exception", "critical", "bind", "bound_contextvars"}
    found = []
    for folder in PACKAGES:
        for path in (root / folder).rglob("*.py"):
            text = path.read_text()
            # Most modules name none of them, and parsing is slow.
            for node in ast.walk(ast.parse(text)) if keyword.search(text) else ():
                if isinstance(node, ast.Call) and getattr(node.func, "attr", getattr(node.func, "id", "")) in methods:
                    found += [f"{path.name}:{node.lineno} {each.arg}" for each in node.keywords if each.arg in RESERVED]
    assert found == []


def test_a_console_line_names_the_stack_of_a_batch_in_the_line_itself() -> None:
    out = io.StringIO()
    configure_logging("console", "info", stream=out)
    structlog.get_logger().info("Ran the engine", stack_name="herdsman-prod", changed=1)
    (line,) = out.getvalue().splitlines()
    assert "stack_name=herdsman-prod" in line
