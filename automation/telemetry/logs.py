"""One log for Herdsman's lines and those of pulumi, kubernetes and urllib3, by structlog.

`automation.cli` configures it once. Modules log with `structlog.get_logger()`, or, in `kubeapi`, with the standard
library and `extra=`. Workers bind namespace and name with `structlog.contextvars.bound_contextvars`. No line uses a key
of `RESERVED`, which structlog's renderers treat differently.
"""

from __future__ import annotations

import logging
import re
import sys
from typing import Any, Literal, TextIO

import structlog
from structlog.typing import EventDict, Processor, WrappedLogger

Format = Literal["auto", "console", "json"]

REDACTED = "[redacted]"
RESERVED = frozenset({"event", "exception", "level", "logger", "logger_name", "stack", "timestamp"})
"""Keys with a meaning for the renderers. For example, the console renderer writes `stack` on a separate line."""
_SECRET_KEY = re.compile(
    r"(?:^|[_\-.])(?:authorization|(?:access|bearer|id|refresh|sa|auth|hf)?[_\-]?token|password|passwd|passphrase|secret"
    r"|api[_\-]?key|private[_\-]?key|client[_\-]?key[_\-]?data)$",
    re.IGNORECASE,
)
_CAMEL = re.compile(r"(?<=[a-z0-9])(?=[A-Z])")
_SECRET_TEXT = re.compile(
    r"(?P<before>\b(?:bearer|basic)\s+"
    r"|\b(?:authorization|[a-z_\-]*token|password|passphrase|api[_\-]?key|pulumi_config_passphrase)[\"']?\s*[=:]\s*[\"']?"
    r"(?:(?:bearer|basic)\s+)?)(?P<secret>[^\s\"',;&]+)",
    re.IGNORECASE,
)
_URL_PASSWORD = re.compile(r"(?P<before>\b[a-z][a-z0-9+.\-]*://[^\s/:@]*:)[^\s/@]+(?=@)", re.IGNORECASE)

_NOISY = ("urllib3", "kubernetes", "pulumi", "paramiko", "fabric", "invoke", "asyncio", "grpc")


def redact(_logger: WrappedLogger, _method: str, event: EventDict) -> EventDict:
    """Replace secrets, which are recognized by key names at any depth and by patterns in text.

    A structlog processor.
    """
    return {key: _redacted(key, value) for key, value in event.items()}


def configure_logging(log_format: Format | None = None, level: str = "info", *, stream: TextIO | None = None) -> None:
    """Send all logging to `stream` (stderr by default): coloured lines on a terminal, JSON objects otherwise.

    May be called again; the last call counts. Raises ValueError for an unknown level.
    """
    out = stream if stream is not None else sys.stderr
    number = logging.getLevelNamesMapping().get(level.upper())
    if number is None:
        raise ValueError(f"unknown log level {level!r}; use debug, info, warning or error")
    console = log_format == "console" or (log_format in (None, "auto") and out.isatty())
    shared: list[Processor] = [
        structlog.contextvars.merge_contextvars,
        structlog.stdlib.add_log_level,
        structlog.processors.TimeStamper(fmt="iso", utc=True),
        structlog.processors.StackInfoRenderer(),
    ]
    render: list[Processor]
    if console:
        render = [redact, structlog.dev.ConsoleRenderer(colors=out.isatty())]
    else:
        render = [structlog.processors.format_exc_info, redact, structlog.processors.JSONRenderer(default=str)]
    handler = logging.StreamHandler(out)
    handler.setFormatter(
        structlog.stdlib.ProcessorFormatter(
            processors=[structlog.stdlib.ProcessorFormatter.remove_processors_meta, *render],
            foreign_pre_chain=[*shared, structlog.stdlib.add_logger_name, structlog.stdlib.ExtraAdder()],
        )
    )
    root = logging.getLogger()
    for old in list(root.handlers):
        root.removeHandler(old)
    root.addHandler(handler)
    root.setLevel(number)
    for name in _NOISY:
        # Their lines of level info describe single requests, which are useful only for debugging.
        logging.getLogger(name).setLevel(logging.DEBUG if number <= logging.DEBUG else max(number, logging.WARNING))
    structlog.configure(
        processors=[
            structlog.stdlib.filter_by_level,
            *shared,
            structlog.stdlib.PositionalArgumentsFormatter(),
            structlog.stdlib.ProcessorFormatter.wrap_for_formatter,
        ],
        wrapper_class=structlog.stdlib.BoundLogger,
        logger_factory=structlog.stdlib.LoggerFactory(),
        cache_logger_on_first_use=False,
    )


def _redacted(key: str, value: Any) -> Any:
    if isinstance(value, (str, bytes, dict, list, tuple)) and _SECRET_KEY.search(_CAMEL.sub("_", key)):
        return REDACTED
    if isinstance(value, str):
        text = _SECRET_TEXT.sub(rf"\g<before>{REDACTED}", value)
        return _URL_PASSWORD.sub(rf"\g<before>{REDACTED}", text)
    if isinstance(value, dict):
        return {inner: _redacted(str(inner), item) for inner, item in value.items()}
    if isinstance(value, (list, tuple)):
        return [_redacted("", item) for item in value]
    return value
