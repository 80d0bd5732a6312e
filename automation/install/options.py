"""What somebody who installs may choose. Made by `herdsman install`; the chart's values have the same names.

Whatever makes no sense is refused here, before anything is looked at. No option holds a secret: they are named.
"""

from __future__ import annotations

import re
from importlib import metadata
from typing import Any, Literal
from urllib.parse import urlsplit

from pydantic import BaseModel, ConfigDict, Field, ValidationError, field_validator, model_validator

from automation.settings import SYSTEM_NAMESPACE, Settings
from program.desired.keys import is_dns_label

DECIDED = frozenset(
    {
        "kubeconfig",
        "once",
        "state",
        "work_dir",
        "passphrase",
        "passphrase_file",
        "policies",
        "health_address",
        "health_port",
        "metrics_token_file",
        "lease_namespace",
    }
)
"""Settings of the loop that the installation itself decides."""

QUANTITY = r"[1-9][0-9]*(\.[0-9]+)?(Ki|Mi|Gi|Ti|k|M|G|T)?"


def version() -> str:
    """The version of Herdsman that this is."""
    return metadata.version("herdsman")


def default_image() -> str:
    """The image that the Containerfile of this version is built as."""
    return f"herdsman:{version()}"


class InstallOptions(BaseModel):
    """The options of an installation. Raises pydantic's ValidationError, which names the option."""

    model_config = ConfigDict(frozen=True, extra="forbid", use_attribute_docstrings=True)

    namespace: str = SYSTEM_NAMESPACE
    """Where the operator runs."""
    image: str = Field(default_factory=default_image, min_length=1)
    """The image that the Containerfile makes, where your cluster pulls it from."""
    pull_secret: str = ""
    """Secret that the image is pulled with."""
    replicas: int = Field(default=1, ge=1, le=2)
    """Two take over from each other in seconds, and need a state that both reach: a URL."""
    memory: str = Field(default="512Mi", pattern=f"^{QUANTITY}$")
    """Asked for and never exceeded, the engine's processes included. The default is for 1,000 services."""
    state: str = ""
    """URL of the state's backend, without credentials. Empty: a claim of our own."""
    state_secret: str = ""
    """Secret whose key `url` is the URL; all its keys become environment variables (AWS_ACCESS_KEY_ID …)."""
    state_claim_size: str = Field(default="5Gi", pattern=f"^{QUANTITY}$")
    """Of the claim for the state, where no URL says where else it is."""
    state_claim_class: str = ""
    """Storage class of the claim. Empty: the cluster's default."""
    passphrase_secret: str = ""
    """Secret whose key `passphrase` encrypts what is secret in the state. Empty: one is made beside the state."""
    metrics_secret: str = ""
    """Secret whose key `token` scrapers must send. Empty: metrics are served to the pod itself alone."""
    policies: str = ""
    """ConfigMap with a file for each policy."""
    kserve: bool = False
    """Grant what KServe's LLMInferenceServices need. Their CRDs are yours to install: `herdsman crds --dialect`."""
    llmaz: bool = False
    """Grant what llmaz's Playgrounds and Services need, likewise."""
    priority_classes: bool = True
    """Install the PriorityClasses that services name. False: they are there, from LLMKube's chart for example."""
    host_identities: Literal["deny", "warn"] = "deny"
    """What the API server does when an agent writes for a host that is not its own: `warn` lets it pass, with a warning
    and a note in the audit log, while agents get identities of their own (docs/explanation/security.md)."""
    settings: dict[str, str] = Field(default_factory=dict)
    """Other settings of `herdsman run`, by their names there."""

    @field_validator("namespace", "pull_secret", "state_secret", "passphrase_secret", "metrics_secret", "policies")
    @classmethod
    def _is_a_name(cls, value: str) -> str:
        if value and not all(is_dns_label(part) for part in value.split(".")):
            raise ValueError(f"`{value[:64]}` is not the name of an object")
        return value

    @field_validator("namespace")
    @classmethod
    def _is_given(cls, value: str) -> str:
        if not value:
            raise ValueError("is empty")
        return value

    @field_validator("state")
    @classmethod
    def _is_a_backend(cls, value: str) -> str:
        if not value:
            return value
        parts = urlsplit(value)
        if not parts.scheme or "://" not in value:
            raise ValueError(f"`{value}` is no URL of a backend: s3://, gs://, azblob:// or postgres://")
        if parts.scheme == "file":
            raise ValueError("a file:// state lies on a claim of its own here; leave this out, or name a backend's URL")
        if parts.password or re.search(r"(password|secret|token|sas)=", parts.query, re.IGNORECASE):
            raise ValueError(
                "the URL holds credentials, which everybody who may read Deployments would see; put it into a Secret "
                "as key `url` and name that (state_secret)"
            )
        return value

    @field_validator("settings")
    @classmethod
    def _are_settings(cls, value: dict[str, str]) -> dict[str, str]:
        names = {name.lower().replace("-", "_"): text for name, text in value.items()}
        for name in names:
            if name in DECIDED:
                raise ValueError(f"`{name}` is decided by the installation; see its own options")
            if name not in Settings.model_fields:
                raise ValueError(f"`herdsman run` has no setting `{name}`")
        try:
            given: dict[str, Any] = dict(names)
            Settings(**given)
        except ValidationError as error:
            first = error.errors()[0]
            raise ValueError(f"{'.'.join(str(part) for part in first['loc'])}: {first['msg']}") from None
        return names

    @model_validator(mode="after")
    def _fit_together(self) -> InstallOptions:
        if self.state and self.state_secret:
            raise ValueError("state and state_secret both say where the state is; give one of them")
        remote = bool(self.state or self.state_secret)
        if self.replicas > 1 and not remote:
            raise ValueError("replicas: two loops need a state that both reach; give state or state_secret")
        if remote and not self.passphrase_secret:
            raise ValueError(
                "passphrase_secret: a state that is not on a claim needs a passphrase that outlives the pod; make a "
                "Secret with the key `passphrase` and name it"
            )
        return self
