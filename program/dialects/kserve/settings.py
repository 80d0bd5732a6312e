"""The settings of a KServe installation: ConfigMap `inferenceservice-config` in namespace `kserve`.

Each key of the ConfigMap is a JSON object. A missing setting has KServe's default.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import lru_cache
from typing import Any, Literal, TypeVar

from kubeapi import kinds
from program.desired.errors import SpecInvalid
from program.desired.quantities import check_quantity
from program.dialects.dialect import Lookup
from program.dialects.kserve.naming import SETTINGS_NAME, SYSTEM_NAMESPACE

HeaderRouting = Literal["enabled", "forced", "disabled"]
_HEADER_ROUTING: tuple[HeaderRouting, ...] = ("enabled", "forced", "disabled")
WILDCARD_LABEL = "inference"
_LONGEST = 100_000
"""Maximum number of characters of one key. The default has fewer than 2,000."""
_T = TypeVar("_T")


@dataclass(frozen=True)
class StorageSettings:
    """The init container that fetches models, and the sidecar with a model image (key `storageInitializer`)."""

    image: str = "kserve/storage-initializer:latest"
    cpu_request: str = "100m"
    cpu_limit: str = "1"
    memory_request: str = "100Mi"
    memory_limit: str = "1Gi"
    ca_bundle_config_map: str = ""
    """A ConfigMap with the certificates for object stores; empty for none."""
    ca_bundle_mount_path: str = "/etc/ssl/custom-certs"
    modelcar: bool = True
    """Whether `oci://` models are served from a sidecar of their image."""
    modelcar_cpu: str = "10m"
    modelcar_memory: str = "15Mi"
    modelcar_uid: int | None = 1010
    oci_model_mode: str = ""
    """How `oci://` models are mounted if the address does not set it: `modelcar`, `native`, or empty for neither."""


@dataclass(frozen=True)
class CredentialSettings:
    """Names of keys and endpoints of stores, and defaults for accounts without annotations (key `credentials`)."""

    secret_annotation: str = "serving.kserve.io/storageSecretName"  # noqa: S105 - the name of an annotation
    """Annotation of a service that names the Secret with its store's keys."""
    access_key: str = "AWS_ACCESS_KEY_ID"
    secret_key: str = "AWS_SECRET_ACCESS_KEY"  # noqa: S105 - a key of a Secret
    """Keys of that Secret."""
    s3: Mapping[str, str] = field(default_factory=dict)
    """Defaults of all stores, by the last part of the annotation for one store (`endpoint`, `region` …)."""


@dataclass(frozen=True)
class PrometheusSettings:
    """The Prometheus from which KEDA reads the wanted number of replicas (key `autoscaling-wva-controller-config`)."""

    url: str = ""
    tls_insecure_skip_verify: bool = False
    auth_modes: str = ""
    trigger_auth_name: str = ""
    trigger_auth_kind: str = ""


@dataclass(frozen=True)
class Settings:
    """The settings of all LLMInferenceServices of a cluster."""

    gateway_namespace: str = "kserve"
    gateway_name: str = "kserve-ingress-gateway"
    """The Gateway of routes whose service names none (`kserveIngressGateway`)."""
    tls: bool = False
    """Whether pods serve with a TLS certificate (`enableLLMInferenceServiceTLS`)."""
    model_header: str = "X-Gateway-Model-Name"
    """Request header in which a gateway sets the model's name."""
    header_routing: HeaderRouting = "enabled"
    """Whether routes match that header: by default, always, or never (`modelBasedRoutingMode`)."""
    storage: StorageSettings = StorageSettings()
    credentials: CredentialSettings = CredentialSettings()
    prometheus: PrometheusSettings = PrometheusSettings()
    config_prefix: str = "kserve-"
    """Prefix of the names of presets, for a distribution of KServe that ships presets under other names. KServe's
    controller reads it from its environment; Herdsman reads it from key `herdsman`, `configPrefix`.
    """
    wildcard_label: str = WILDCARD_LABEL
    """Replaces the `*` of a gateway's host name in URLs. KServe reads it from a variable too (`wildcardHostname`)."""
    expiration_annotations: tuple[str, ...] = ("certificates.kserve.io/expiration",)
    """Annotations of the certificate Secret with the time of its expiration (`scheduler.expirationAnnotations`)."""


def settings(look: Lookup) -> Settings:
    """Read the settings; return the defaults if there is no ConfigMap.

    Raises SpecInvalid with reason CombineBaseError and the name of the invalid key.
    """
    found = look(kinds.CONFIG_MAPS, SYSTEM_NAMESPACE, SETTINGS_NAME)
    data = (found or {}).get("data")
    if not isinstance(data, dict):
        return Settings()
    return _parsed(tuple(str(data.get(key) or "") for key in _KEYS))


_INGRESS = "ingress"
_STORAGE = "storageInitializer"
_WVA = "autoscaling-wva-controller-config"
_SCHEDULER = "scheduler"
_CREDENTIALS = "credentials"
_OURS = "herdsman"
_KEYS = (_INGRESS, _STORAGE, _WVA, _SCHEDULER, _CREDENTIALS, _OURS)
_S3 = {
    "s3Endpoint": "endpoint",
    "s3UseHttps": "usehttps",
    "s3Region": "region",
    "s3VerifySSL": "verifyssl",
    "s3UseVirtualBucket": "usevirtualbucket",
    "s3UseAccelerate": "useaccelerate",
    "s3UseAnonymousCredential": "useanoncredential",
    "s3CABundle": "cabundle",
}


@lru_cache(maxsize=64)
def _parsed(texts: tuple[str, ...]) -> Settings:
    ingress = _Key(_INGRESS, texts[0])
    storage = _Key(_STORAGE, texts[1])
    prometheus = _Key(_WVA, texts[2]).inner("prometheus")
    ours = _Key(_OURS, texts[5])
    default = Settings()
    gateway = ingress.text("kserveIngressGateway", f"{default.gateway_namespace}/{default.gateway_name}")
    gateway_namespace, slash, gateway_name = gateway.partition("/")
    if not (slash and gateway_namespace and gateway_name) or "/" in gateway_name:
        raise ingress.wrong("kserveIngressGateway", f"`{gateway[:64]}` is not `namespace/name`")
    return Settings(
        gateway_namespace=gateway_namespace,
        gateway_name=gateway_name,
        tls=ingress.flag("enableLLMInferenceServiceTLS", default.tls),
        model_header=ingress.text("modelBasedRoutingHeaderName", default.model_header),
        header_routing=ingress.one_of("modelBasedRoutingMode", _HEADER_ROUTING),
        storage=_storage(storage),
        credentials=_credentials(_Key(_CREDENTIALS, texts[4])),
        prometheus=PrometheusSettings(
            url=prometheus.text("url", ""),
            tls_insecure_skip_verify=prometheus.flag("tlsInsecureSkipVerify", False),
            auth_modes=prometheus.text("authModes", ""),
            trigger_auth_name=prometheus.text("triggerAuthName", ""),
            trigger_auth_kind=prometheus.text("triggerAuthKind", ""),
        ),
        config_prefix=ours.text("configPrefix", default.config_prefix),
        wildcard_label=ours.text("wildcardHostname", default.wildcard_label),
        expiration_annotations=_Key(_SCHEDULER, texts[3]).texts(
            "expirationAnnotations", default.expiration_annotations
        ),
    )


def _storage(key: _Key) -> StorageSettings:
    default = StorageSettings()
    return StorageSettings(
        image=key.text("image", default.image),
        cpu_request=key.quantity("cpuRequest", default.cpu_request, "cpu"),
        cpu_limit=key.quantity("cpuLimit", default.cpu_limit, "cpu"),
        memory_request=key.quantity("memoryRequest", default.memory_request, "memory"),
        memory_limit=key.quantity("memoryLimit", default.memory_limit, "memory"),
        ca_bundle_config_map=key.text("caBundleConfigMapName", default.ca_bundle_config_map),
        ca_bundle_mount_path=key.text("caBundleVolumeMountPath", default.ca_bundle_mount_path),
        modelcar=key.flag("enableModelcar", default.modelcar),
        modelcar_cpu=key.quantity("cpuModelcar", default.modelcar_cpu, "cpu"),
        modelcar_memory=key.quantity("memoryModelcar", default.modelcar_memory, "memory"),
        modelcar_uid=key.number("uidModelcar", default.modelcar_uid),
        oci_model_mode=key.text("ociModelMode", default.oci_model_mode),
    )


def _credentials(key: _Key) -> CredentialSettings:
    default = CredentialSettings()
    s3 = key.inner("s3")
    said = {part: s3.text(name, "") for name, part in _S3.items()}
    return CredentialSettings(
        secret_annotation=key.text("storageSecretNameAnnotation", default.secret_annotation),
        access_key=s3.text("s3AccessKeyIDName", default.access_key),
        secret_key=s3.text("s3SecretAccessKeyName", default.secret_key),
        s3={part: value for part, value in said.items() if value},
    )


class _Key:
    """One key of the ConfigMap, or an object within it.

    Every method that reads raises SpecInvalid with the field's name.
    """

    def __init__(self, path: str, text: str = "", value: dict[str, Any] | None = None) -> None:
        self._path = path
        self._value: dict[str, Any] = value if value is not None else self._decoded(text)

    def _decoded(self, text: str) -> dict[str, Any]:
        if not text.strip():
            return {}
        if len(text) > _LONGEST:
            raise self.wrong("", f"is longer than {_LONGEST} characters")
        try:
            value = json.loads(text)
        except (ValueError, RecursionError) as error:
            raise self.wrong("", f"is not JSON: {error}; write a JSON object, or remove the key") from None
        if not isinstance(value, dict):
            raise self.wrong("", "is not a JSON object")
        return value

    def inner(self, name: str) -> _Key:
        return _Key(f"{self._path}.{name}", value=self._of(dict, name, {}, "an object"))

    def text(self, name: str, default: str) -> str:
        return self._of(str, name, default, "a text") or default

    def texts(self, name: str, default: tuple[str, ...]) -> tuple[str, ...]:
        value = self._of(list, name, [], "a list")
        if not all(isinstance(word, str) for word in value):
            raise self.wrong(name, "holds a value that is not a string")
        return tuple(value) or default

    def flag(self, name: str, default: bool) -> bool:
        return self._of(bool, name, default, "true or false")

    def number(self, name: str, default: int | None) -> int | None:
        value = self._value.get(name)
        if value is None:
            return default
        if isinstance(value, bool) or not isinstance(value, int) or value < 0:
            raise self.wrong(name, f"`{str(value)[:64]}` is not a whole number from 0")
        return value

    def quantity(self, name: str, default: str, unit: Literal["cpu", "memory"]) -> str:
        text = self.text(name, default)
        try:
            check_quantity(text, field="", unit=unit)
        except SpecInvalid as error:
            raise self.wrong(name, error.why) from None
        return text

    def one_of(self, name: str, allowed: tuple[_T, ...]) -> _T:
        """Return the value, which must be allowed. The first allowed value is the default."""
        value = self._value.get(name) or allowed[0]
        for word in allowed:
            if word == value:
                return word
        raise self.wrong(name, f"`{str(value)[:64]}` is none of {', '.join(map(str, allowed))}")

    def wrong(self, name: str, why: str) -> SpecInvalid:
        path = f"{self._path}.{name}" if name else self._path
        return SpecInvalid(
            field=f"ConfigMap {SYSTEM_NAMESPACE}/{SETTINGS_NAME} {path}", why=why, reason="CombineBaseError"
        )

    def _of(self, kind: type[_T], name: str, default: _T, words: str) -> _T:
        value = self._value.get(name)
        if value is None:
            return default
        if not isinstance(value, kind):
            raise self.wrong(name, f"`{str(value)[:64]}` is not {words}")
        return value
