"""ModelRouter → `program.desired.router.Router`, with all checks of LLMKube, and checks of names and addresses. Pure.

The gateway and the loop call `router_of`; the loop reports what `unsupported_fields` lists.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from decimal import Decimal

from kubeapi.json_types import Json
from program.desired.errors import SpecInvalid
from program.desired.facts import Problem, unsupported_field
from program.desired.reachable import check_url
from program.desired.router import (
    Audit,
    Budget,
    Classification,
    ExternalModel,
    HealthCheck,
    Match,
    Router,
    RouterBackend,
    Rule,
    TokenIssuer,
)
from program.dialects.crds.reading import check_shape, read, unknown_fields, without_nulls
from program.dialects.llmkube.parse.durations import seconds
from program.dialects.llmkube.schema.model_router import (
    AuthSpec,
    BackendSpec,
    BudgetSpec,
    ClassificationSpec,
    EndpointSpec,
    ExternalSpec,
    ModelRouterSpec,
    PolicySpec,
    ProxySpec,
    RuleSpec,
)

SHORTEST_S, LONGEST_S = 0.1, 1800.0
"""The bounds of timeouts."""
MOST_PER_MILLION, MOST_BUDGET = 1_000_000, 1_000_000_000
"""The highest price of a million tokens and the largest budget, in US dollars."""
DEFAULT_URLS = {"openai": "https://api.openai.com/v1", "anthropic": "https://api.anthropic.com"}
EXAMPLE_URLS = {
    "bedrock": "https://bedrock-runtime.eu-central-1.amazonaws.com",
    "vertex_ai": "https://europe-west4-aiplatform.googleapis.com/v1/projects/PROJECT/locations/europe-west4/endpoints/openapi",
    "litellm": "http://litellm.NAMESPACE.svc:4000",
}
"""Addresses of the providers without a default, for messages."""
_HEADER = re.compile(r"[A-Za-z0-9!#$%&'*+.^_`|~-]+")


def router_of(cr: Json) -> Router:
    """Parse a ModelRouter. Raises SpecInvalid with the path of the first field that is not valid."""
    check_shape(cr)
    spec = _spec(cr)
    if spec.data_plane == "Gateway":
        raise SpecInvalid(
            field="spec.dataPlane",
            why="`Gateway` is not supported, because Herdsman makes no objects of Envoy AI Gateway; use `Proxy`, and "
            "Herdsman's own gateway serves the router",
        )
    policy = spec.policy or PolicySpec()
    kinds = policy.classification or ClassificationSpec()
    classification = Classification(
        mode=kinds.mode,
        header=kinds.header_key.lower(),
        sensitive=frozenset(each.strip().casefold() for each in kinds.sensitive_classifications),
    )
    metadata = cr["metadata"]
    namespace = metadata.get("namespace") or "default"
    backends = _backends(spec.backends, namespace)
    rules = _rules(spec.rules, {each.name: each for each in backends}, classification.sensitive)
    if spec.default_route is not None and spec.default_route not in {each.name for each in backends}:
        raise SpecInvalid(field="spec.defaultRoute", why=f"`{spec.default_route}` is the name of no backend")
    proxy = spec.proxy or ProxySpec()
    path = (spec.endpoint or EndpointSpec()).path
    if not path.startswith("/"):
        raise SpecInvalid(field="spec.endpoint.path", why=f"`{path}` does not begin with a slash")
    auth = policy.auth or AuthSpec()
    return Router(
        namespace=namespace,
        name=metadata["name"],
        backends=backends,
        rules=rules,
        default=spec.default_route or "",
        by_name=spec.default_route_strategy == "BackendNameMatch",
        classification=classification,
        issuer=_issuer(auth, namespace),
        allowed=tuple((each.team, tuple(each.models)) for each in auth.allowlists),
        audit=_audit(policy),
        budgets=_budgets(policy.budgets, rules),
        quarantine_s=_seconds(proxy.quarantine_duration, "spec.proxy.quarantineDuration") or 15.0,
        header_timeout_s=_seconds(proxy.response_header_timeout, "spec.proxy.responseHeaderTimeout"),
        chat_path=path,
        created=metadata.get("creationTimestamp") or "",
    )


def unsupported_fields(cr: Json) -> tuple[Problem, ...]:
    """List the fields that are set and have no effect. Raises SpecInvalid for a spec that cannot be read."""
    return tuple(_unsupported(_spec(cr)))


def _spec(cr: Json) -> ModelRouterSpec:
    return read(ModelRouterSpec, without_nulls(cr.get("spec")), field="spec")


def _unsupported(spec: ModelRouterSpec) -> Iterator[Problem]:
    shared = "has no effect: Herdsman's gateway serves all routers, and a router has no pods and no Service of its own"
    if spec.gateway_ref is not None:
        yield unsupported_field("spec.gatewayRef", "has no effect with dataPlane Proxy")
    endpoint, proxy = spec.endpoint or EndpointSpec(), spec.proxy or ProxySpec()
    if endpoint.port != 8080:
        yield unsupported_field("spec.endpoint.port", shared)
    if endpoint.type not in (None, "ClusterIP"):
        yield unsupported_field("spec.endpoint.type", shared)
    of_pods = (
        ("image", proxy.image),
        ("imagePullSecrets", proxy.image_pull_secrets),
        ("nodeSelector", proxy.node_selector),
        ("replicas", proxy.replicas),
        ("resources", proxy.resources),
        ("revisionHistoryLimit", proxy.revision_history_limit),
    )
    for name, value in of_pods:
        if value not in (None, [], {}):
            yield unsupported_field(f"spec.proxy.{name}", shared)
    if spec.mcp_server is not None and spec.mcp_server.enabled:
        yield unsupported_field("spec.mcpServer.enabled", "has no effect: LLMKube reserves the field")
    for path, _ in unknown_fields(spec, field="spec"):
        yield unsupported_field(path, "is not known")


# --- backends ---------------------------------------------------------------------------------------------------------


def _backends(specs: Iterable[BackendSpec], namespace: str) -> tuple[RouterBackend, ...]:
    found: list[RouterBackend] = []
    owners: dict[str, str] = {}
    for index, spec in enumerate(specs):
        field = f"spec.backends[{index}]"
        found.append(_backend(spec, field, namespace))
        if any(each.name == spec.name for each in found[:-1]):
            raise SpecInvalid(field=f"{field}.name", why=f"`{spec.name}` is the name of another backend, too")
    for each in found:
        owners[each.name] = each.name
    for index, each in enumerate(found):
        if each.display_name and owners.setdefault(each.display_name, each.name) != each.name:
            why = f"`{each.display_name}` is the name of backend `{owners[each.display_name]}`, too"
            raise SpecInvalid(field=f"spec.backends[{index}].displayName", why=why)
    return tuple(found)


def _backend(spec: BackendSpec, field: str, namespace: str) -> RouterBackend:
    if (spec.inference_service_ref is None) == (spec.external is None):
        raise SpecInvalid(field=field, why="needs inferenceServiceRef or external, and not both")
    if spec.inference_service_ref is not None and spec.tier == "cloud":
        raise SpecInvalid(field=f"{field}.tier", why="`cloud` is not allowed for an InferenceService; set `local`")
    cost = spec.cost_per_million_tokens
    check = spec.health_check
    if check is not None and not (check.path or "/health").startswith("/"):
        raise SpecInvalid(field=f"{field}.healthCheck.path", why=f"`{check.path}` does not begin with a slash")
    return RouterBackend(
        name=spec.name,
        service=spec.inference_service_ref.name if spec.inference_service_ref else "",
        external=_external(spec.external, f"{field}.external", namespace) if spec.external else None,
        display_name=spec.display_name or "",
        tier="local" if spec.external is None else "cloud",
        capabilities=frozenset(spec.capabilities),
        weight=spec.weight,
        prompt_usd=_usd(cost.prompt_usd if cost else None, MOST_PER_MILLION, f"{field}.costPerMillionTokens.promptUSD"),
        completion_usd=_usd(
            cost.completion_usd if cost else None, MOST_PER_MILLION, f"{field}.costPerMillionTokens.completionUSD"
        ),
        health_check=HealthCheck(check.path or "/health", check.interval_seconds, check.timeout_seconds)
        if check
        else None,
        timeout_s=_timeout(spec.timeout, f"{field}.timeout"),
    )


def _external(spec: ExternalSpec, field: str, namespace: str) -> ExternalModel:
    secret = spec.credentials_secret_ref.name if spec.credentials_secret_ref else ""
    if not secret and spec.provider != "litellm":
        raise SpecInvalid(field=f"{field}.credentialsSecretRef", why=f"is missing; {spec.provider} requires a key")
    url = spec.url or DEFAULT_URLS.get(spec.provider)
    if url is None:
        raise SpecInvalid(
            field=f"{field}.url",
            why=f"is missing; {spec.provider} has no default, write for example {EXAMPLE_URLS[spec.provider]}",
        )
    check_url(url, f"{field}.url", namespace)
    return ExternalModel(spec.provider, url.rstrip("/"), spec.model, secret)


# --- rules ------------------------------------------------------------------------------------------------------------


def _rules(
    specs: Iterable[RuleSpec], backends: dict[str, RouterBackend], sensitive: frozenset[str]
) -> tuple[Rule, ...]:
    found: list[Rule] = []
    for index, spec in enumerate(specs):
        field = f"spec.rules[{index}]"
        if any(each.name == spec.name for each in found):
            raise SpecInvalid(field=f"{field}.name", why=f"`{spec.name}` is the name of another rule, too")
        rule = _rule(spec, field)
        _check_route(rule, field, backends)
        named = sorted(rule.match.classes & sensitive)
        if named and not rule.fail_closed:
            why = f"must be true, because the rule is for the sensitive class `{named[0]}`"
            raise SpecInvalid(field=f"{field}.failClosed", why=why)
        if named and (away := [name for name in rule.backends if not backends[name].is_local]):
            why = f"`{away[0]}` is not local, and the rule is for the sensitive class `{named[0]}`"
            raise SpecInvalid(field=f"{field}.route.backends[{rule.backends.index(away[0])}]", why=why)
        found.append(rule)
    return tuple(found)


def _rule(spec: RuleSpec, field: str) -> Rule:
    match = Match()
    if (given := spec.match) is not None:
        for name in given.headers:
            if not _HEADER.fullmatch(name):
                raise SpecInvalid(field=f"{field}.match.headers", why=f"`{name[:64]}` is not the name of a header")
        match = Match(
            classes=frozenset(each.strip().casefold() for each in given.data_classification),
            complexity=given.task_complexity or "",
            capabilities=frozenset(given.required_capabilities),
            first_byte_s=given.latency_slo_ms / 1000 if given.latency_slo_ms is not None else None,
            headers=tuple(sorted((name.lower(), value) for name, value in given.headers.items())),
            models=tuple(given.models),
        )
    return Rule(
        name=spec.name,
        backends=tuple(spec.route.backends),
        match=match,
        strategy=spec.route.strategy,
        fail_closed=bool(spec.fail_closed),
        timeout_s=_timeout(spec.timeout, f"{field}.timeout"),
    )


def _check_route(rule: Rule, field: str, backends: dict[str, RouterBackend]) -> None:
    for index, name in enumerate(rule.backends):
        at = f"{field}.route.backends[{index}]"
        if name not in backends:
            raise SpecInvalid(field=at, why=f"`{name}` is the name of no backend")
        if name in rule.backends[:index]:
            raise SpecInvalid(field=at, why=f"`{name}` is in the list twice")
    if rule.strategy == "shadow" and len(rule.backends) < 2:
        raise SpecInvalid(field=f"{field}.route.backends", why="has one entry; shadow copies requests to a second one")
    if rule.strategy == "weighted" and not any(backends[name].weight for name in rule.backends):
        raise SpecInvalid(field=f"{field}.route.backends", why="have weight 0; strategy weighted would choose none")


# --- policy -----------------------------------------------------------------------------------------------------------


def _issuer(auth: AuthSpec, namespace: str) -> TokenIssuer | None:
    if auth.jwt is None:
        if auth.allowlists:
            raise SpecInvalid(
                field="spec.policy.auth.jwt",
                why="is missing; allowlists compare the team of a client's token",
                reason="AuthorizationRequiresJWT",
            )
        return None
    teams = [each.team for each in auth.allowlists]
    for index, team in enumerate(teams):
        if team in teams[:index]:
            field = f"spec.policy.auth.allowlists[{index}].team"
            raise SpecInvalid(field=field, why=f"`{team}` is in the list twice", reason="InvalidAuthorization")
    check_url(auth.jwt.jwks_uri, "spec.policy.auth.jwt.jwksURI", namespace)
    return TokenIssuer(
        provider=auth.jwt.provider,
        issuer=auth.jwt.issuer,
        keys_url=auth.jwt.jwks_uri,
        team_claim=tuple(auth.jwt.team_claim.split(".")),
        team_header=auth.jwt.header_key.lower(),
    )


def _audit(policy: PolicySpec) -> Audit | None:
    spec = policy.audit_log
    if spec is None:
        return None
    field = "spec.policy.auditLog"
    path = (spec.file_path or "").lstrip("/")
    if spec.sink == "file" and (not path or ".." in path.split("/")):
        why = "must name a file below the gateway's directory for audits, without `..`"
        raise SpecInvalid(field=f"{field}.filePath", why=why)
    if spec.sink != "file" and path:
        raise SpecInvalid(field=f"{field}.filePath", why=f"is set, but the sink is {spec.sink}")
    return Audit(spec.sink, path, bool(spec.include_request_body))


def _budgets(specs: list[BudgetSpec], rules: tuple[Rule, ...]) -> tuple[Budget, ...]:
    found: list[Budget] = []
    for index, spec in enumerate(specs):
        field = f"spec.policy.budgets[{index}]"
        if any(each.name == spec.name for each in found):
            raise SpecInvalid(field=f"{field}.name", why=f"`{spec.name}` is the name of another budget, too")
        if spec.max_tokens is None and spec.max_usd is None:
            raise SpecInvalid(field=field, why="needs maxTokens or maxUSD", reason="InvalidBudget")
        if spec.scope == "rule" and spec.rule_name not in {rule.name for rule in rules}:
            why = f"`{spec.rule_name or ''}` is the name of no rule"
            raise SpecInvalid(field=f"{field}.ruleName", why=why, reason="InvalidBudget")
        if spec.scope != "rule" and spec.rule_name:
            raise SpecInvalid(field=f"{field}.ruleName", why=f"is set, but the scope is {spec.scope}")
        found.append(
            Budget(
                name=spec.name,
                scope=spec.scope,
                rule=spec.rule_name or "",
                header=spec.header_key.lower(),
                window_s=spec.window_seconds,
                max_tokens=spec.max_tokens,
                max_usd=_usd(spec.max_usd, MOST_BUDGET, f"{field}.maxUSD") if spec.max_usd is not None else None,
            )
        )
    return tuple(found)


def _usd(text: str | None, most: int, field: str) -> Decimal:
    found = Decimal(text or 0)
    if not found.is_finite() or not 0 <= found <= most:
        raise SpecInvalid(field=field, why=f"`{text}` is not between 0 and {most:,}")
    return found


# --- durations --------------------------------------------------------------------------------------------------------


def _seconds(text: str | None, field: str) -> float | None:
    return None if text is None else seconds(text, field)


def _timeout(text: str | None, field: str) -> float | None:
    found = _seconds(text, field)
    if found is not None and not SHORTEST_S <= found <= LONGEST_S:
        raise SpecInvalid(field=field, why=f"`{text}` is not between 100ms and 30m")
    return found
