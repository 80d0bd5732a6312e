"""The policies of one folder, for the callers that check a service before they apply it. Made by `reading`."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from components.policies.evaluator import Evaluator
from components.policies.matching import LONGEST_VALUE, concerns, concerns_place, value_at
from components.policies.own_rules import Answer
from components.policies.place_rules import hosts, namespace_of_resource, namespaces, sources
from components.policies.policy import Violation
from components.policies.router_rules import routers
from components.policies.schema import CelRule, Match, PolicySpec
from components.policies.workload_rules import RuleViolation, Subject, images, pods, resources
from components.rendered import RenderedService
from kubeapi import kinds
from kubeapi.json_types import Json
from program.desired.service import DesiredService

MOST_VIOLATIONS = 64
"""Number of violations of one service at most, since the status of the service holds them."""


@dataclass(frozen=True)
class Policy:
    """One document of kind Policy."""

    name: str
    spec: PolicySpec

    @property
    def mandatory(self) -> bool:
        return self.spec.enforcement == "mandatory"


@dataclass(frozen=True)
class OwnRule:
    """One rule in CEL or Python. Its index in the list is its number in the evaluator."""

    policy: str
    match: Match
    mandatory: bool
    cel: CelRule | None = None
    """None for a function of a Python file, whose answer contains the message."""


_BUILT_IN: tuple[tuple[str, Callable[[Subject, Any], Iterator[RuleViolation]]], ...] = (
    ("image_registries", images),
    ("resources", resources),
    ("sources", sources),
    ("namespaces", namespaces),
    ("pods", pods),
    ("hosts", hosts),
)


class FolderPolicies:
    """All policies of a folder; implements `Policies`. Thread-safe."""

    def __init__(
        self, policies: tuple[Policy, ...], own: tuple[OwnRule, ...] = (), evaluator: Evaluator | None = None
    ) -> None:
        self._policies = policies
        self._own = own
        self._evaluator = evaluator

    def __len__(self) -> int:
        return len(self._policies) + sum(1 for rule in self._own if rule.cel is None)

    def check(
        self,
        desired: DesiredService,
        rendered: RenderedService,
        *,
        cr: Json,
        namespace_labels: Mapping[str, str],
    ) -> tuple[Violation, ...]:
        """Return all violations, the mandatory ones first; see `Policies`."""
        subject = Subject(desired, rendered, cr)
        found = [
            violation
            for policy in self._policies
            if concerns(policy.spec.match, desired.key, namespace_labels)
            for violation in _built_in(policy, subject)
        ]
        found += self._asked(subject, namespace_labels)
        found.sort(key=lambda violation: not violation.mandatory)
        return tuple(dict.fromkeys(found))[:MOST_VIOLATIONS]

    def check_resource(self, cr: Json, *, namespace_labels: Mapping[str, str]) -> tuple[Violation, ...]:
        """Return all violations of a ModelRouter, ModelPool or LoRAAdapter; see `Policies`."""
        kind, metadata = str(cr["kind"]), cr["metadata"]
        at = (str(metadata.get("namespace") or ""), str(metadata["name"]))

        def applies(match: Match, *, by_default: bool = False) -> bool:
            has_kind = kind in match.kinds if match.kinds else by_default
            return has_kind and concerns_place(match, *at, namespace_labels)

        found: list[Violation] = []
        for policy in self._policies:
            if kind == kinds.MODEL_ROUTERS.kind and applies(policy.spec.match, by_default=True):
                found += _evaluated(policy, "routers", routers, cr)
            if applies(policy.spec.match):
                found += _evaluated(policy, "namespaces", namespace_of_resource, cr)
        numbers = [number for number, rule in enumerate(self._own) if applies(rule.match)]
        found += self._answers(numbers, _resource_input(cr, namespace_labels), cr)
        found.sort(key=lambda violation: not violation.mandatory)
        return tuple(dict.fromkeys(found))[:MOST_VIOLATIONS]

    def close(self) -> None:
        """End the process that evaluates custom rules."""
        if self._evaluator is not None:
            self._evaluator.close()

    def _asked(self, subject: Subject, namespace_labels: Mapping[str, str]) -> Iterator[Violation]:
        numbers = [
            number for number, rule in enumerate(self._own) if concerns(rule.match, subject.key, namespace_labels)
        ]
        if numbers:
            yield from self._answers(numbers, _input(subject, namespace_labels), subject.cr)

    def _answers(self, numbers: list[int], given: Json, cr: Json) -> Iterator[Violation]:
        if not numbers or self._evaluator is None:
            return
        answers = self._evaluator.ask(numbers, given)
        for number in numbers:
            rule, found = self._own[number], answers[number]
            if isinstance(found, str):
                what = f"rule `{rule.cel.name}`" if rule.cel is not None else "the rule"
                yield _failed(rule.policy, what, found, mandatory=rule.mandatory)
                continue
            for answer in found:
                yield _of_cel(rule, rule.cel, cr) if rule.cel is not None else _of_python(rule, answer)


def _built_in(policy: Policy, subject: Subject) -> Iterator[Violation]:
    for name, check in _BUILT_IN:
        yield from _evaluated(policy, name, check, subject)


def _evaluated(
    policy: Policy, name: str, check: Callable[[Any, Any], Iterator[RuleViolation]], subject: Any
) -> Iterator[Violation]:
    """Evaluate one built-in rule of a policy, if the policy has it."""
    rule = getattr(policy.spec, name)
    if rule is None:
        return
    try:
        findings = list(check(subject, rule))
    except Exception as error:  # any error counts as a violation, so that nothing passes unchecked
        why = f"{type(error).__name__}: {str(error)[:LONGEST_VALUE]}"
        yield _failed(policy.name, f"rule `{name}`", why, mandatory=policy.mandatory)
        return
    for field, value, words, fix in findings:
        yield Violation(policy.name, words, field, value, fix, mandatory=policy.mandatory)


def _failed(policy: str, what: str, why: str, *, mandatory: bool) -> Violation:
    return Violation(
        policy,
        f"{what} cannot be evaluated, which counts as a violation",
        "the policy itself",
        why[: 2 * LONGEST_VALUE],
        "correct the rule; until then Herdsman does not change the services that the rule applies to"
        if mandatory
        else "correct the rule",
        mandatory=mandatory,
        failed=True,
    )


def _of_cel(rule: OwnRule, cel: CelRule, cr: Json) -> Violation:
    field = cel.field or "the service"
    value = value_at(cr, cel.field) if cel.field else "not as the rule requires"
    return Violation(rule.policy, f"{cel.message} (rule `{cel.name}`)", field, value, cel.fix, mandatory=rule.mandatory)


def _of_python(rule: OwnRule, answer: Answer) -> Violation:
    return Violation(
        rule.policy,
        answer.rule or "the rule is violated",
        answer.field or "the service",
        answer.value or "not as the rule requires",
        answer.fix or "change the service, or ask the author of the policy",
        mandatory=rule.mandatory,
    )


def _input(subject: Subject, namespace_labels: Mapping[str, str]) -> Json:
    """Build the input of custom rules. It contains the custom resource's metadata and spec, but no status."""
    kept = _metadata(subject.cr, subject.key.namespace, subject.key.name)
    model = subject.desired.model
    return {
        "service": {"metadata": kept, "spec": subject.cr.get("spec") or {}},
        "model": {
            "name": model.name,
            "source": model.source.address,
            "format": str(model.format),
            "quantization": model.quantization,
            "sha256": model.sha256 or "",
            "sizeBytes": model.size_bytes,
            "accelerator": model.accelerator,
        },
        "objects": [each.manifest for each in subject.rendered.objects],
        "namespaceLabels": dict(namespace_labels),
    }


def _resource_input(cr: Json, namespace_labels: Mapping[str, str]) -> Json:
    """Build the input of custom rules for a ModelRouter, ModelPool or LoRAAdapter."""
    metadata = cr["metadata"]
    kept = _metadata(cr, str(metadata.get("namespace") or ""), str(metadata["name"]))
    return {
        "resource": {"kind": cr["kind"], "metadata": kept, "spec": cr.get("spec") or {}},
        "namespaceLabels": dict(namespace_labels),
    }


def _metadata(cr: Json, namespace: str, name: str) -> Json:
    metadata = cr.get("metadata") or {}
    return {
        "name": name,
        "namespace": namespace,
        **{each: metadata.get(each) or {} for each in ("labels", "annotations")},
    }
