"""The exit codes of the commands.

docs/reference/cli.md lists them (`automation.reference.exit_codes`). 64 is EX_USAGE of sysexits.h, and 4 the code of
gh for missing access.
"""

from __future__ import annotations

DONE = 0
FAILED = 1
WOULD_CHANGE = 2
"""A dry run found changes."""
TIMED_OUT = 3
"""The wait ended before the work did. The work goes on."""
NO_ACCESS = 4
"""The place refuses the caller, or cannot be reached, or none is configured."""
USAGE = 64
INTERRUPTED = 130
