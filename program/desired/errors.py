"""Errors in desired state. The type of an error decides retry, condition and log level (automation.controller).

After `SpecInvalid` the loop waits for an edit; after `NotYet` it waits for a change of the cluster. Both are expected,
and are never logged as errors.
"""

from __future__ import annotations


class DesiredError(Exception):
    """The base of both families: `reason` is a CamelCase condition reason, `field` the path in the custom resource."""

    def __init__(self, *, reason: str, why: str, field: str = "") -> None:
        super().__init__(f"{field}: {why}" if field else why)
        self.reason = reason
        self.why = why
        self.field = field


class SpecInvalid(DesiredError):
    """The object asks for something impossible; only an edit helps."""

    def __init__(self, *, field: str, why: str, reason: str = "SpecInvalid") -> None:
        super().__init__(reason=reason, why=why, field=field)


class NotYet(DesiredError):
    """Something that the object needs does not exist yet.

    The loop retries on its change, or after `retry_after_s` seconds.
    """

    def __init__(self, *, reason: str, why: str, field: str = "", retry_after_s: float = 30.0) -> None:
        super().__init__(reason=reason, why=why, field=field)
        self.retry_after_s = retry_after_s


class ModelNotReady(NotYet):
    """The Model that a service names is missing or not Ready. A change of the Model enqueues the service again.

    `found` is False for a missing Model.
    """

    def __init__(self, *, model: str, found: bool) -> None:
        why = f"Model `{model}` is not Ready" if found else f"there is no Model `{model}`"
        super().__init__(reason="ModelNotReady", why=why, field="spec.modelRef")
        self.model = model
        self.found = found
