"""The exit codes of the commands, for docs/reference/cli.md. A test compares them with the code of each command."""

from __future__ import annotations

COMMON = {
    0: "The command did what was asked.",
    1: "The command failed. `adopt`, `approve` and `rollback`: the answer to the question was no.",
    64: "The command line is invalid: an unknown command or option, a missing or invalid value.",
    130: "The command was interrupted with Ctrl-C.",
}
"""The meaning of each code, unless COMMANDS has another one for the command."""

_DECLINED = {130: "The answer to the question was no, or the command was interrupted."}
_WOULD_CHANGE = {2: "With `--dry-run`: something would change."}

_PLACE = {4: "There is no access: no cluster is configured, it refuses the caller, or it cannot be reached."}
_WAITS = {3: "The service, or the download, was not ready in time. The work goes on.", **_PLACE}

COMMANDS: dict[str, dict[int, str]] = {
    "adopt": {1: "A service failed, or the command failed. Other services may be adopted already."},
    "agent install": _WOULD_CHANGE,
    "agent status": {1: "No agent is installed, or it does not answer."},
    "agent uninstall": _WOULD_CHANGE,
    "agent upgrade": _WOULD_CHANGE,
    "approve": {
        1: "The loop did not apply the change in time, the answer was no, or the command failed.",
        2: "No change is pending.",
        3: "The pending change is not the one that was named or shown, or the service was edited meanwhile.",
    },
    "bundle load": _WOULD_CHANGE,
    "cache list": {1: "At least one cache could not be read, or the command failed."},
    "cache prune": {1: "A cache could not be read, a model was not deleted, or the command failed."},
    "catalog check": {1: "A file is missing or differs from its entry, or the command failed."},
    "cluster status": {1: "At least one part of the cluster is not up."},
    "bench": {1: "A request failed, or the command failed.", **_WAITS},
    "chat": _WAITS,
    "convert": {2: "With `--strict`: a field was lost. The documents are printed."},
    "delete": {
        1: "The answer was no, there is no terminal to ask and no `--yes`, or the command failed.",
        **_PLACE,
        **_WOULD_CHANGE,
    },
    "deploy": {
        1: "The service failed, or the command failed.",
        2: "With `--dry-run`: something would change.",
        **_WAITS,
    },
    "doctor": {0: "Nothing that was checked is missing. There may be warnings.", 1: "At least one check failed."},
    "drift": {0: "There is no drift.", 1: "The command failed.", 2: "There is drift."},
    "host drain": {
        1: "Services that can move were still on the host at the end, or the command failed.",
        **_WOULD_CHANGE,
    },
    "install": _WOULD_CHANGE,
    "leaders": {1: "A shard has no leader, no loop has led yet, or the command failed."},
    "console": _PLACE,
    "list": _PLACE,
    "open": _WAITS,
    "local status": {1: "Local mode does not run, or the command failed."},
    "policy check": {1: "A mandatory policy is violated, or a file or policy is invalid."},
    "preview": {
        0: "Nothing would change.",
        1: "The command failed, or the change would be refused.",
        2: "Something would change.",
    },
    "ps": _PLACE,
    "pull": {**_WAITS, **_WOULD_CHANGE},
    "queue": _PLACE,
    "rollback": _WOULD_CHANGE,
    "run": {
        0: "The loop was stopped by SIGTERM or Ctrl-C. With `--once`: every service was applied.",
        1: "The loop failed or lost its Lease. With `--once`: a service was not applied, or a pass failed.",
    },
    "scale": {**_PLACE, **_WOULD_CHANGE},
    "start": {**_PLACE, **_WOULD_CHANGE},
    "state doctor": {1: "A loop cannot work with this state, or the command failed."},
    "state repair": {**_DECLINED, **_WOULD_CHANGE},
    "state unlock": {**_DECLINED, **_WOULD_CHANGE},
    "status": _PLACE,
    "stop": {**_PLACE, **_WOULD_CHANGE},
    "uninstall": {**_DECLINED, **_WOULD_CHANGE},
    "cache warm": _WOULD_CHANGE,
    "host cordon": _WOULD_CHANGE,
    "host uncordon": _WOULD_CHANGE,
    "host remove": _WOULD_CHANGE,
    "host revoke": _WOULD_CHANGE,
    "host invite": _WOULD_CHANGE,
    "host join": _WOULD_CHANGE,
    "key create": _WOULD_CHANGE,
    "key rotate-engine": {
        3: "Pods still had the old key at the end of the wait. The roll-out goes on.",
        **_PLACE,
        **_WOULD_CHANGE,
    },
    "key revoke": _WOULD_CHANGE,
    "state move": _WOULD_CHANGE,
    "state restore": _WOULD_CHANGE,
    "state rekey": _WOULD_CHANGE,
    "state prune": _WOULD_CHANGE,
    "local up": _WOULD_CHANGE,
    "local down": _WOULD_CHANGE,
}
"""The codes with a meaning of their own, by command."""
