"""A router of requests: its backends, rules and policy, as a dialect reads them from a custom resource. Pure."""

from __future__ import annotations

from dataclasses import dataclass
from decimal import Decimal
from typing import Literal

Strategy = Literal["primary-fallback", "weighted", "shadow"]
Provider = Literal["anthropic", "openai", "bedrock", "vertex_ai", "litellm"]


@dataclass(frozen=True)
class ExternalModel:
    """A model of a provider outside the cluster."""

    provider: Provider
    url: str
    """Base URL, without a slash at its end."""
    model: str
    secret: str = ""
    """Name of the Secret with the credentials, in the router's namespace; empty for none."""


@dataclass(frozen=True)
class HealthCheck:
    """Requests that find out whether a backend is healthy."""

    path: str
    interval_s: float = 10.0
    timeout_s: float = 2.0


@dataclass(frozen=True)
class RouterBackend:
    """A model that rules can choose: an InferenceService of the router's namespace, or an external model."""

    name: str
    service: str = ""
    external: ExternalModel | None = None
    display_name: str = ""
    tier: Literal["local", "cloud"] = "local"
    capabilities: frozenset[str] = frozenset()
    weight: int = 1
    prompt_usd: Decimal = Decimal(0)
    """US dollars for a million tokens of prompts."""
    completion_usd: Decimal = Decimal(0)
    """US dollars for a million tokens of answers."""
    health_check: HealthCheck | None = None
    timeout_s: float | None = None

    @property
    def is_local(self) -> bool:
        """Whether sensitive data may reach the backend. An external model is never local."""
        return self.external is None and self.tier == "local"


@dataclass(frozen=True)
class Match:
    """Conditions on a request. All that are set must hold. Classes and names of headers are in lower case."""

    classes: frozenset[str] = frozenset()
    complexity: str = ""
    capabilities: frozenset[str] = frozenset()
    first_byte_s: float | None = None
    """Time to the first byte of an answer that a backend of the route must meet."""
    headers: tuple[tuple[str, str], ...] = ()
    models: tuple[str, ...] = ()
    """Patterns with `*` and `?`."""


@dataclass(frozen=True)
class Rule:
    """Where the requests that match go."""

    name: str
    backends: tuple[str, ...]
    match: Match = Match()
    strategy: Strategy = "primary-fallback"
    fail_closed: bool = False
    timeout_s: float | None = None


@dataclass(frozen=True)
class Classification:
    """How the class of a request's data is found. Classes are in lower case."""

    mode: Literal["header-only", "detector", "hybrid"] = "header-only"
    header: str = "x-llmkube-classification"
    sensitive: frozenset[str] = frozenset({"pii", "phi"})


@dataclass(frozen=True)
class TokenIssuer:
    """Who issues the tokens (JWT) of clients."""

    provider: str
    issuer: str
    keys_url: str
    team_claim: tuple[str, ...]
    """The names of nested claims, from the outer one to the inner one."""
    team_header: str = "x-llmkube-team"
    """Header that gets the team for the backend, in lower case."""


@dataclass(frozen=True)
class Audit:
    """A line of JSON for each request."""

    sink: Literal["stdout", "file", "otlp"] = "stdout"
    path: str = ""
    """Path of the file below the gateway's directory for audits of the namespace."""
    with_body: bool = False


@dataclass(frozen=True)
class Budget:
    """A limit of tokens or of cost in a window of time."""

    name: str
    scope: Literal["router", "rule", "team"]
    rule: str = ""
    header: str = "x-llmkube-team"
    window_s: int = 3600
    max_tokens: int | None = None
    max_usd: Decimal | None = None


@dataclass(frozen=True)
class BudgetUse:
    """How much of a budget is used in its present window."""

    name: str
    team: str
    """For scope team; empty for others."""
    tokens: int
    usd: Decimal


@dataclass(frozen=True)
class Router:
    """A router of requests."""

    namespace: str
    name: str
    backends: tuple[RouterBackend, ...]
    rules: tuple[Rule, ...] = ()
    default: str = ""
    """Name of the backend of requests that match no rule; empty for none."""
    by_name: bool = False
    """Requests that match no rule go to the backend that they name as `model`, then to the default."""
    classification: Classification = Classification()
    issuer: TokenIssuer | None = None
    allowed: tuple[tuple[str, tuple[str, ...]], ...] = ()
    """Teams with patterns of their models (none: all). If empty, every team is allowed."""
    audit: Audit | None = None
    budgets: tuple[Budget, ...] = ()
    quarantine_s: float = 15.0
    header_timeout_s: float | None = None
    """How long the head of an answer may take without another timeout; None: as long as the gateway allows."""
    chat_path: str = "/v1/chat/completions"
    created: str = ""
    """When the object was created, in RFC 3339."""

    def backend(self, name: str) -> RouterBackend | None:
        """Return a backend by its name."""
        return next((each for each in self.backends if each.name == name), None)

    def rule(self, name: str) -> Rule | None:
        """Return a rule by its name."""
        return next((each for each in self.rules if each.name == name), None)

    @property
    def public_names(self) -> tuple[str, ...]:
        """The values of `model` that this router alone has a backend or a rule for: its names for clients."""
        shown = [each.display_name for each in self.backends if each.display_name] if self.by_name else []
        exact = [name for rule in self.rules for name in rule.match.models if not set(name) & set("*?")]
        return tuple(dict.fromkeys((*shown, *exact)))
