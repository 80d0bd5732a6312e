"""ModelRouter (`mr`) of inference.llmkube.dev/v1alpha1: rules that choose the backend of a request.

The fields are the same as in LLMKube's CRDs. `parse.router` checks them, also against each other.
"""

from __future__ import annotations

from typing import Any, Literal

from pydantic import ConfigDict

from program.dialects.crds.schema import CrdModel, Int64, Time, optional, required, rule
from program.dialects.llmkube.schema.status import AcceptedVersion, Condition, PendingChangeStatus
from program.dialects.pods.schema import LocalObjectReference

NAME = r"^[a-z0-9][a-z0-9-]{0,62}$"
DURATION = r"^([0-9]+(\.[0-9]+)?(ms|s|m|h))+$"
DECIMAL = r"^[0-9]+(\.[0-9]+)?$"
HEADER = r"^[A-Za-z0-9!#$%&'*+.^_`|~-]+$"


class ObjectReference(CrdModel):
    name: str = required("Name of the object.", min_length=1)
    namespace: str | None = optional("Namespace of the object.")


class ServiceReference(CrdModel):
    name: str = required("Name of an InferenceService in the router's namespace.", min_length=1)


class ExternalSpec(CrdModel):
    """A model of a provider outside the cluster."""

    credentials_secret_ref: LocalObjectReference | None = optional(
        "Secret in the router's namespace with the provider's credentials."
    )
    model: str = required("Name by which the provider knows the model.", min_length=1)
    provider: Literal["anthropic", "openai", "bedrock", "vertex_ai", "litellm"] = required("API of the provider.")
    url: str | None = optional("Base URL of the API. anthropic and openai have a default.", min_length=1)


class CostSpec(CrdModel):
    completion_usd: str | None = optional(
        "US dollars for a million tokens of answers.", name="completionUSD", pattern=DECIMAL
    )
    prompt_usd: str | None = optional("US dollars for a million tokens of prompts.", name="promptUSD", pattern=DECIMAL)


class HealthCheckSpec(CrdModel):
    interval_seconds: int = optional("Time between two checks.", 10, ge=1)
    path: str | None = optional("Path that answers with a status below 400 while the backend is healthy.")
    timeout_seconds: int = optional("How long an answer may take.", 2, ge=1)


class BackendSpec(CrdModel):
    """A model that rules can choose."""

    model_config = ConfigDict(
        json_schema_extra={
            "x-kubernetes-validations": [
                rule(
                    "has(self.inferenceServiceRef) != has(self.external)",
                    "set inferenceServiceRef or external, and not both",
                )
            ]
        }
    )
    capabilities: list[str] = optional("What the model can do, for requiredCapabilities of rules.", [])
    cost_per_million_tokens: CostSpec | None = optional("Price of the tokens, for budgets and for the audit log.")
    display_name: str | None = optional("Public name of the model.")
    external: ExternalSpec | None = optional("A model of a provider outside the cluster.")
    health_check: HealthCheckSpec | None = optional("Requests that find out whether the backend is healthy.")
    inference_service_ref: ServiceReference | None = optional("An InferenceService of the router's namespace.")
    name: str = required("Name of the backend in this router.", pattern=NAME)
    tier: Literal["local", "cloud"] = optional(
        "Where the model runs. An external backend counts as cloud whatever its tier is.", "local"
    )
    timeout: str | None = optional("How long the head of an answer may take, such as 30s.", pattern=DURATION)
    weight: int = optional("Share of the requests for strategy weighted; 0 for none.", 1, ge=0)


class MatchSpec(CrdModel):
    """Conditions on a request. All that are set must hold."""

    data_classification: list[str] = optional("Classes of the data; one must be the request's. Case is ignored.", [])
    headers: dict[str, str] = optional("Headers and their exact values.", {})
    latency_slo_ms: int | None = optional(
        "Time to the first byte in milliseconds that a backend of the route must meet.", name="latencySLOMs", ge=1
    )
    models: list[str] = optional("Patterns of the request's `model`, with `*` and `?`; one must match.", [])
    required_capabilities: list[str] = optional("What the chosen backend must be able to do.", [])
    task_complexity: Literal["simple", "moderate", "complex"] | None = optional(
        "Value of the header x-llmkube-task-complexity."
    )


class RouteSpec(CrdModel):
    backends: list[str] = required("Names of backends, in the order in which they are tried.", min_length=1)
    strategy: Literal["primary-fallback", "weighted", "shadow"] = optional(
        "How a backend is chosen. shadow: the first answers, and the others get copies.", "primary-fallback"
    )


class RuleSpec(CrdModel):
    fail_closed: bool | None = optional("Refuse sensitive requests if no local backend answers.")
    match: MatchSpec | None = optional("Which requests the rule is for; all if absent.")
    name: str = required("Name of the rule.", pattern=NAME)
    route: RouteSpec = required("Where the requests go.")
    timeout: str | None = optional("How long the head of an answer may take; wins over backends.", pattern=DURATION)


class BudgetSpec(CrdModel):
    """A limit of tokens or of cost in a window of time."""

    header_key: str = optional("Header with the team, for scope team.", "x-llmkube-team", pattern=HEADER)
    max_tokens: Int64 | None = optional("Most tokens in a window.", ge=1)
    max_usd: str | None = optional("Most US dollars in a window.", name="maxUSD", pattern=DECIMAL)
    name: str = required("Name of the budget.", pattern=NAME)
    rule_name: str | None = optional("The rule, for scope rule.")
    scope: Literal["router", "rule", "team"] = required("What the limit is for.")
    window_seconds: int = optional("Length of the window.", 3600, ge=1)


class ClassificationSpec(CrdModel):
    header_key: str = optional("Header with the class of the data.", "x-llmkube-classification", pattern=HEADER)
    mode: Literal["header-only", "detector", "hybrid"] = optional(
        "Where the class comes from: the header, a detector that reads the request, or both.", "header-only"
    )
    sensitive_classifications: list[str] = optional("Classes that stay on local backends.", ["pii", "phi"])


class AuditLogSpec(CrdModel):
    file_path: str | None = optional("Path of the file below the gateway's directory for audits, for sink file.")
    include_request_body: bool | None = optional("Write the body of each request, too.")
    sink: Literal["stdout", "file", "otlp"] = optional("Where the lines go.", "stdout")


class JwtSpec(CrdModel):
    header_key: str = optional("Header that gets the team for the backend.", "x-llmkube-team", pattern=HEADER)
    issuer: str = required("Value of the claim `iss`.", min_length=1)
    jwks_uri: str = required("Address of the issuer's keys, a JWKS.", name="jwksURI", pattern=r"^https?://.+")
    provider: str = required("Name of the issuer, for messages.", min_length=1)
    team_claim: str = required("Claim with the team; dots separate the levels of nested claims.", min_length=1)


class AllowlistSpec(CrdModel):
    models: list[str] = optional("Patterns of models that the team may name; all if empty.", [])
    team: str = required("Value of the team claim.", min_length=1)


class AuthSpec(CrdModel):
    allowlists: list[AllowlistSpec] = optional("Teams that are allowed; if any is listed, others are refused.", [])
    jwt: JwtSpec | None = optional("Who issues the tokens of clients.")


class PolicySpec(CrdModel):
    audit_log: AuditLogSpec | None = optional("A line of JSON for each request.")
    auth: AuthSpec | None = optional("Which clients are allowed.")
    budgets: list[BudgetSpec] = optional("Limits of tokens or of cost.", [])
    classification: ClassificationSpec | None = optional("How the class of a request's data is found.")


class EndpointSpec(CrdModel):
    path: str = optional("Path of chat completions below the router's address.", "/v1/chat/completions")
    port: int = optional("Port of the router's own Service; Herdsman makes none.", 8080, ge=1, le=65535)
    type: str | None = optional("Type of the router's own Service; Herdsman makes none.")


class ProxyResourcesSpec(CrdModel):
    limits: dict[str, str | int] = optional("Limits; without effect.", {})
    requests: dict[str, str | int] = optional("Requests; without effect.", {})


class ProxySpec(CrdModel):
    """The router's own proxy in LLMKube. Herdsman's gateway serves all routers, so settings of pods have no effect."""

    image: str | None = optional("Image of the proxy; without effect.")
    image_pull_secrets: list[LocalObjectReference] = optional("Pull secrets; without effect.", [])
    node_selector: dict[str, str] = optional("Nodes of the proxy; without effect.", {})
    quarantine_duration: str | None = optional(
        "How long a backend comes last after an error; 15s when absent.", pattern=DURATION
    )
    replicas: int | None = optional("Replicas of the proxy; without effect.", ge=1, le=10)
    resources: ProxyResourcesSpec | None = optional("Resources of the proxy; without effect.")
    response_header_timeout: str | None = optional(
        "How long the head of an answer may take without another timeout; that of the gateway when absent.",
        pattern=DURATION,
    )
    revision_history_limit: int | None = optional("Kept revisions of the proxy; without effect.", ge=0)


class McpServerSpec(CrdModel):
    enabled: bool | None = optional("Reserved; without effect.")


class ModelRouterSpec(CrdModel):
    """Backends, and the rules that choose one of them for a request."""

    backends: list[BackendSpec] = required("The models that rules can choose.", min_length=1)
    data_plane: Literal["Proxy", "Gateway"] = optional("Proxy; Gateway is refused.", "Proxy")
    default_route: str | None = optional("Name of the backend of requests that match no rule.")
    default_route_strategy: Literal["Static", "BackendNameMatch"] = optional(
        "BackendNameMatch: the backend that the request names as `model`, then defaultRoute.", "Static"
    )
    endpoint: EndpointSpec | None = optional("Address of the router.")
    gateway_ref: ObjectReference | None = optional("Gateway of dataPlane Gateway; without effect.")
    mcp_server: McpServerSpec | None = optional("Reserved; without effect.")
    policy: PolicySpec | None = optional("Classes of data, clients, budgets and audit.")
    proxy: ProxySpec | None = optional("Settings of the router's proxy.")
    rules: list[RuleSpec] = optional("Rules in order; the first that matches counts.", [])


class BackendStatus(CrdModel):
    address: str | None = optional("Service or URL of the backend.")
    healthy: bool | None = optional("Whether a replica is ready; absent for external backends.")
    last_probe_time: Time | None = optional("Time of the last change of `healthy`.")
    message: str | None = optional("Explanation for people.")
    name: str | None = optional("Name of the backend.")
    tier: str | None = optional("local or cloud, as rules use it.")


class BudgetStatus(CrdModel):
    name: str = required("Name of the budget.")
    team: str | None = optional("The team, for scope team.")
    tokens_used: Int64 | None = optional("Tokens that were charged in the present window.")
    usd_used: str | None = optional("US dollars that were charged in the present window.")
    utilization: str | None = optional("Share of the budget that is used, such as 0.25; the higher one of two limits.")


class ModelRouterStatus(CrdModel):
    """The observed state of a router."""

    accepted_version: AcceptedVersion | None = optional("The last version that policies and modes allowed.")
    pending_change: PendingChangeStatus | None = optional("The change that waits for approval.")
    active_rules: int | None = optional("Rules with a backend that can answer.")
    backends: list[BackendStatus] = optional("The backends.", [])
    budget_utilization: list[BudgetStatus] = optional("How much of the budgets is used in their windows.", [])
    conditions: list[Condition] = optional(
        "Validated, BackendsReady, Available and SpecHonoured.",
        [],
        x_kubernetes_list_type="map",
        x_kubernetes_list_map_keys=["type"],
    )
    endpoint: str | None = optional("Address of the router for clients.")
    gateway: dict[str, Any] = optional("Kept for compatibility with LLMKube; not written.", {})
    last_updated: Time | None = optional("Time of the last change of this status.")
    observed_generation: Int64 | None = optional("Generation of the spec that this status describes.")
    phase: Literal["Pending", "Provisioning", "Ready", "Degraded", "Failed"] | None = optional("State of the router.")
