"""What a policy says of a service. Plain data; the rules are in the modules beside this one."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Protocol

from components.rendered import RenderedService
from kubeapi.json_types import Json
from program.desired.service import DesiredService


@dataclass(frozen=True)
class Violation:
    """One rule that one service breaks."""

    policy: str
    """Name of the policy."""
    rule: str
    """What it asks for, in words."""
    field: str
    """Path in the custom resource or, where the rule is about an object made of it, `Deployment/spec.…`."""
    value: str
    """What stands there; never a secret."""
    fix: str
    """What to do."""
    mandatory: bool = True
    """Nothing is applied; False is advice only."""
    failed: bool = False
    """The rule could not be evaluated; asked again, it may be kept."""

    def __str__(self) -> str:
        return f"policy `{self.policy}`: {self.field} is {self.value}: {self.rule}; {self.fix}"


class Policies(Protocol):
    """All policies in force. Pure but for what their files say; thread-safe."""

    def check(
        self,
        desired: DesiredService,
        rendered: RenderedService,
        *,
        cr: Json,
        namespace_labels: Mapping[str, str],
    ) -> tuple[Violation, ...]:
        """Give all violations, the mandatory ones first. A rule that cannot be evaluated counts as violated.

        `cr` is the custom resource as it was written: own rules see its metadata and spec.
        """
        ...


class NoPolicies:
    """What is in force where nobody made any."""

    def check(
        self,
        desired: DesiredService,  # noqa: ARG002 - the protocol's name
        rendered: RenderedService,  # noqa: ARG002 - the protocol's name
        *,
        cr: Json,  # noqa: ARG002 - the protocol's name
        namespace_labels: Mapping[str, str],  # noqa: ARG002 - the protocol's name
    ) -> tuple[Violation, ...]:
        return ()

    def __len__(self) -> int:
        return 0

    def close(self) -> None:
        """End nothing."""
