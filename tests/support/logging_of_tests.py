"""Where log lines of a test run go: through the standard library to pytest, which shows them with a test that fails.

structlog's own default prints to the stdout of the moment, which may be what a test reads a command's answer from. And
a command that runs in the test's process sets logging up for its own: to the stderr of the moment, which pytest closes
with the test, while threads of a longer life, and every later test, would go on writing to it.
"""

from __future__ import annotations

import logging

import structlog

OURS = ("agent", "automation", "components", "kubeapi", "program", "tools")
_FACTORY = structlog.stdlib.LoggerFactory()


def give_logging_to_pytest() -> None:
    """Set logging up as tests need it, whatever was set up before. Costs nothing where nobody changed it."""
    if structlog.is_configured() and structlog.get_config()["logger_factory"] is _FACTORY:
        return
    root = logging.getLogger()
    for handler in list(root.handlers):
        if isinstance(handler.formatter, structlog.stdlib.ProcessorFormatter):
            root.removeHandler(handler)
    root.setLevel(logging.WARNING)
    for name in OURS:
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
