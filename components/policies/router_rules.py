"""The built-in rule about ModelRouters: backends outside the cluster. Pure; called by `in_force`."""

from __future__ import annotations

from collections.abc import Iterator
from urllib.parse import urlsplit

from components.policies.matching import fits
from components.policies.schema import Routers
from components.policies.workload_rules import RuleViolation
from kubeapi.json_types import Json
from program.desired.errors import SpecInvalid
from program.dialects.llmkube.parse.router import router_of


def routers(cr: Json, rule: Routers) -> Iterator[RuleViolation]:
    """Check the backends of a ModelRouter that are outside the cluster. A router that is not valid has none."""
    try:
        router = router_of(cr)
    except SpecInvalid:
        return  # the gateway serves no such version
    for index, backend in enumerate(router.backends):
        external = backend.external
        if external is None:
            continue
        field = f"spec.backends[{index}].external"
        if rule.forbid_external:
            fix = "use an InferenceService as backend"
            yield RuleViolation(field, external.provider, "backends outside the cluster are not allowed", fix)
            continue
        if rule.providers and external.provider not in rule.providers:
            allowed = ", ".join(rule.providers)
            words = f"providers must be one of {allowed}"
            yield RuleViolation(f"{field}.provider", external.provider, words, "use one of these providers")
        host = urlsplit(external.url).hostname or ""
        if rule.hosts and not fits(host, rule.hosts):
            allowed = ", ".join(rule.hosts)
            yield RuleViolation(f"{field}.url", host, f"hosts of providers must match {allowed}", "use such an address")
