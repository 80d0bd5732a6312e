"""Sends the log lines of a test run through the standard library to pytest, which shows them with a failed test.

structlog's default prints to the current stdout, from which a test may read the output of a command. A command that
runs in the test's process also configures logging for the current stderr. pytest closes that stream with the test,
while threads that outlive the test, and all later tests, would still write to it.
"""

from __future__ import annotations

import logging

import structlog

from tests.support.packages import PACKAGES

_FACTORY = structlog.stdlib.LoggerFactory()


def give_logging_to_pytest() -> None:
    """Configure logging for tests, whatever was configured before. This costs nothing when nothing has changed."""
    if structlog.is_configured() and structlog.get_config()["logger_factory"] is _FACTORY:
        return
    root = logging.getLogger()
    for handler in list(root.handlers):
        if isinstance(handler.formatter, structlog.stdlib.ProcessorFormatter):
            root.removeHandler(handler)
    root.setLevel(logging.WARNING)
    for name in PACKAGES:
        logging.getLogger(name).setLevel(logging.INFO)
    structlog.configure(
        processors=[
            structlog.stdlib.filter_by_level,
            structlog.contextvars.merge_contextvars,
            structlog.stdlib.PositionalArgumentsFormatter(),
            structlog.dev.ConsoleRenderer(colors=False),
        ],
        wrapper_class=structlog.stdlib.BoundLogger,
        logger_factory=_FACTORY,
    )
