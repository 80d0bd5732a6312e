"""The result of a policy for a service. Plain data; the rules are in the other modules of this package."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Protocol

from components.rendered import RenderedService
from kubeapi.json_types import Json
from program.desired.service import DesiredService


class PolicyUnreadable(Exception):
    """A folder of policies cannot be read; the message names file and field, and what to do."""


@dataclass(frozen=True)
class Violation:
    """One rule that one service violates."""

    policy: str
    """Name of the policy."""
    rule: str
    """The requirement in words."""
    field: str
    """Path in the custom resource, or in a rendered object (`Deployment/spec.…`) if the rule is about the object."""
    value: str
    """The value of the field; never a secret."""
    fix: str
    """The advice to the user."""
    mandatory: bool = True
    """True: nothing is applied. False: the violation is only reported."""
    failed: bool = False
    """Whether the evaluation failed. A later evaluation may pass."""

    def __str__(self) -> str:
        return f"policy `{self.policy}`: {self.field} is {self.value}: {self.rule}; {self.fix}"


class Policies(Protocol):
    """All policies of a folder. Thread-safe."""

    def check(
        self,
        desired: DesiredService,
        rendered: RenderedService,
        *,
        cr: Json,
        namespace_labels: Mapping[str, str],
    ) -> tuple[Violation, ...]:
        """Return all violations, the mandatory ones first. A rule that cannot be evaluated counts as violated.

        `cr` is the custom resource as the user wrote it: custom rules get its metadata and spec.
        """
        ...

    def check_resource(self, cr: Json, *, namespace_labels: Mapping[str, str]) -> tuple[Violation, ...]:
        """Return all violations of a ModelRouter, ModelPool or LoRAAdapter, the mandatory ones first."""
        ...


class NoPolicies:
    """The policies of an installation without a folder of policies."""

    def check(
        self,
        desired: DesiredService,  # noqa: ARG002 - the protocol's name
        rendered: RenderedService,  # noqa: ARG002 - the protocol's name
        *,
        cr: Json,  # noqa: ARG002 - the protocol's name
        namespace_labels: Mapping[str, str],  # noqa: ARG002 - the protocol's name
    ) -> tuple[Violation, ...]:
        return ()

    def check_resource(
        self,
        cr: Json,  # noqa: ARG002 - the protocol's name
        *,
        namespace_labels: Mapping[str, str],  # noqa: ARG002 - the protocol's name
    ) -> tuple[Violation, ...]:
        return ()

    def __len__(self) -> int:
        return 0

    def close(self) -> None:
        """Do nothing."""
