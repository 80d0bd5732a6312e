"""Converts between Pulumi and the Kubernetes API: tokens, names, inputs, request bodies, outputs. Pure.

Called by `components.providers.kubernetes`. Calls the marshalling and the diff.
"""

from __future__ import annotations

import base64
import hashlib
import re
from dataclasses import dataclass
from typing import Any

from components import naming
from components.providers.kubernetes_diff import MISSING, value_at, with_value
from components.providers.properties import UNKNOWN, Properties, Secret, marked_like, plain
from kubeapi.json_types import Json

ADOPT_ANNOTATION = "herdsman.dev/adopt"
LAST_APPLIED_ANNOTATION = "kubectl.kubernetes.io/last-applied-configuration"
FIELD_MANAGER_KEY = "__fieldManager"
INPUTS_KEY = "__inputs"
INITIAL_VERSION_KEY = "__initialApiVersion"
"""Keys that Pulumi's own Kubernetes plugin keeps in the outputs beside the object, and compares with the next
inputs."""
DEFAULT_NAMESPACE = "default"
MAX_NAME = 63
_SUFFIX_DIGITS = 8
_SECRET_FIELDS = ("data", "stringData")
_ASSIGNED_METADATA = ("uid", "resourceVersion", "creationTimestamp", "generation", "managedFields", "selfLink")
_PROGRAM_MODULES = ("helm.sh/v3", "helm.sh/v4", "kustomize", "kustomize/v2", "yaml", "yaml/v2")
"""Modules of the SDK that make several objects and are no kinds of the API."""


class NotSupported(Exception):
    """A type token that the embedded provider does not serve; the message names an alternative."""


@dataclass(frozen=True)
class Token:
    """The parts of a type token such as `kubernetes:apps/v1:Deployment`."""

    api_version: str
    kind: str

    @staticmethod
    def parse(text: str) -> Token:
        """Parse a type token. Raises NotSupported if it is not the type of a single Kubernetes object."""
        parts = text.split(":")
        if len(parts) != 3 or not parts[1] or not parts[2]:
            raise NotSupported(f"`{text}` is not a type of a Kubernetes object")
        _, module, kind = parts
        if module in _PROGRAM_MODULES:
            raise NotSupported(
                f"`{text}` is not supported by the embedded provider: it contains many objects. "
                "Register each object by itself, or use the official provider"
            )
        if kind.endswith("Patch") and kind != "Patch":
            raise NotSupported(
                f"`{text}` is not supported by the embedded provider: the provider never writes to objects of other "
                f"owners. "
                f'Register the whole object, with the annotation {ADOPT_ANNOTATION}: "true" to take it over'
            )
        if kind.endswith("List"):
            raise NotSupported(
                f"`{text}` is not supported by the embedded provider: a list is not an object. "
                "Register each item by itself"
            )
        return Token("v1" if module == "core/v1" else module, kind)

    @property
    def secret(self) -> bool:
        """Whether objects of this kind have secret data."""
        return self.api_version == "v1" and self.kind == "Secret"

    @property
    def crd(self) -> bool:
        return self.kind == "CustomResourceDefinition" and self.api_version.startswith("apiextensions.k8s.io/")


@dataclass(frozen=True)
class Identity:
    """Namespace and name of an object; the namespace is None for cluster-scoped kinds."""

    namespace: str | None
    name: str

    @staticmethod
    def of(obj: Json) -> Identity:
        metadata = obj.get("metadata") or {}
        return Identity(metadata.get("namespace"), str(metadata.get("name") or ""))

    @staticmethod
    def parse(resource_id: str, *, namespaced: bool) -> Identity:
        """Parse a Pulumi id: `namespace/name`, or `name` (in the default namespace if the kind is namespaced)."""
        namespace, _, name = resource_id.rpartition("/")
        return Identity((namespace or DEFAULT_NAMESPACE) if namespaced else None, name)

    @property
    def id(self) -> str:
        return f"{self.namespace}/{self.name}" if self.namespace else self.name


def auto_name(logical: str, seed: bytes, prefix: str | None = None) -> str:
    """Return an object name made of its Pulumi resource's name and a suffix from the engine's seed."""
    suffix = hashlib.sha256(seed).hexdigest()[:_SUFFIX_DIGITS]
    base = prefix if prefix is not None else re.sub(r"[^a-z0-9]+", "-", logical.lower()).strip("-") + "-"
    return base[: MAX_NAME - _SUFFIX_DIGITS].lstrip("-") + suffix


def cleaned(inputs: Properties) -> Properties:
    """Copy inputs without nulls and without the private `__` keys of the official provider's state."""
    return {key: _without_nulls(value) for key, value in inputs.items() if value is not None and key[:2] != "__"}


def _without_nulls(value: Any) -> Any:
    if isinstance(value, dict):
        return {key: _without_nulls(child) for key, child in value.items() if child is not None}
    if isinstance(value, list):
        return [_without_nulls(child) for child in value]
    return value


def plain_cleaned(inputs: Properties) -> Properties:
    """Copy inputs as `cleaned(plain(inputs))` does, in one pass."""
    return {key: value for key, value in _plain_without_nulls(inputs).items() if key[:2] != "__"}


def _plain_without_nulls(value: Any) -> Any:
    if isinstance(value, dict):
        return {key: each for key, child in value.items() if (each := _plain_without_nulls(child)) is not None}
    if isinstance(value, list):
        return [_plain_without_nulls(child) for child in value]
    return _plain_without_nulls(value.value) if isinstance(value, Secret) else value


def sealed(properties: Properties, token: Token) -> Properties:
    """Return properties with a Secret's data marked as secret."""
    if not token.secret:
        return properties
    return {
        key: Secret(value) if key in _SECRET_FIELDS and not isinstance(value, Secret) else value
        for key, value in properties.items()
    }


def body(inputs: Properties, token: Token) -> Json:
    """Build the object to apply from inputs without unknowns, without the fields that only the server may write.

    A Secret's stringData becomes data. The server merges stringData into data and does not keep it, so that under
    server-side apply a key removed from stringData would stay for ever.
    """
    obj: Json = plain_cleaned(inputs)
    obj["metadata"] = {key: value for key, value in obj["metadata"].items() if key not in _ASSIGNED_METADATA}
    texts = obj.get("stringData")
    if token.secret and isinstance(texts, dict):
        encoded = {key: base64.b64encode(str(text).encode()).decode() for key, text in texts.items()}
        obj["data"] = {**(obj.get("data") or {}), **encoded}
        del obj["stringData"]
    return obj


def of_fleet(obj: Json) -> bool:
    """Return whether a static fleet makes an object."""
    annotations = (obj.get("metadata") or {}).get("annotations")
    return isinstance(annotations, dict) and naming.ANNOTATION_FLEET in annotations


def adoption_asked(inputs: Json) -> bool:
    annotations = (inputs.get("metadata") or {}).get("annotations") or {}
    return isinstance(annotations, dict) and str(annotations.get(ADOPT_ANNOTATION, "")).lower() == "true"


def with_metadata(obj: Json, **fields: Any) -> Json:
    """Copy an object with these fields of its metadata set."""
    return {**obj, "metadata": {**(obj.get("metadata") or {}), **fields}}


def outputs(
    live: Json, inputs: Properties, token: Token, field_manager: str | None, initial_version: str = ""
) -> Properties:
    """Return a live object as the resource's outputs, without book-keeping fields and with all secrets marked.

    The outputs also contain the inputs, as with Pulumi's own Kubernetes plugin: without them that plugin replaces the
    object (docs/adr/0044). `field_manager` is recorded if it applied the object. A manager that is recorded but no
    longer owns fields has lost the object to another client; an imported object was never applied. `initial_version` is
    the apiVersion with which the object was made; empty means that of the token.
    """
    metadata = {key: value for key, value in (live.get("metadata") or {}).items() if key != "managedFields"}
    if token.secret and LAST_APPLIED_ANNOTATION in (metadata.get("annotations") or {}):
        # kubectl keeps a copy of the whole Secret there.
        kept = {key: value for key, value in metadata["annotations"].items() if key != LAST_APPLIED_ANNOTATION}
        metadata["annotations"] = kept
    shaped: Properties = sealed(marked_like({**live, "metadata": metadata}, inputs), token)
    return {**shaped, **kept_beside(inputs, token, field_manager, initial_version)}


def kept_beside(inputs: Properties, token: Token, field_manager: str | None, initial_version: str = "") -> Properties:
    """Return the outputs beside the object itself; secrets in the inputs stay marked."""
    manager = {FIELD_MANAGER_KEY: field_manager} if field_manager is not None else {}
    version = initial_version or token.api_version
    return {INPUTS_KEY: sealed(inputs, token), INITIAL_VERSION_KEY: version, **manager}


def recorded_manager(outputs: Json) -> str | None:
    """Return the field manager that applied the object according to a state; it may be another plugin's."""
    manager = outputs.get(FIELD_MANAGER_KEY)
    return manager if isinstance(manager, str) and manager else None


def recorded_version(outputs: Json) -> str:
    """Return the apiVersion with which an object was made according to a state; empty if the state has none."""
    version = outputs.get(INITIAL_VERSION_KEY)
    return version if isinstance(version, str) else ""


def without_bookkeeping(live: Json) -> Json:
    """Copy a live object without the fields that the server itself writes at each change."""
    metadata = {key: value for key, value in live["metadata"].items() if key not in _ASSIGNED_METADATA}
    return {**{key: value for key, value in live.items() if key != "status"}, "metadata": metadata}


def identity_outputs(live: Json, field_manager: str | None) -> Properties:
    """Return the fewest outputs by which a later call finds the same object again."""
    metadata = {key: live["metadata"][key] for key in ("name", "namespace", "uid") if key in live["metadata"]}
    shaped: Properties = {"apiVersion": live["apiVersion"], "kind": live["kind"], "metadata": metadata}
    if field_manager is not None:
        shaped[FIELD_MANAGER_KEY] = field_manager
    return shaped


def planned_outputs(dry: Json, inputs: Properties, token: Token, field_manager: str) -> Properties:
    """Return the outputs of a create's dry run; fields that the server assigns only at the real create are unknown."""
    shaped = outputs(dry, inputs, token, field_manager)
    metadata = {key: UNKNOWN if key in _ASSIGNED_METADATA else value for key, value in shaped["metadata"].items()}
    shaped = {**shaped, "metadata": {**metadata, "uid": UNKNOWN}, "status": UNKNOWN}
    spec = shaped.get("spec")
    if token.kind == "Service" and isinstance(spec, dict):
        given = plain(inputs).get("spec") or {}
        assigned = [key for key in ("clusterIP", "clusterIPs", "healthCheckNodePort") if key in spec]
        shaped["spec"] = {**spec, **{key: UNKNOWN for key in assigned if key not in given}}
    return shaped


def unknown_outputs(inputs: Properties, token: Token) -> Properties:
    """Return the outputs of a change that cannot be tried yet: the inputs, and everything else unknown."""
    metadata = inputs.get("metadata")
    shaped = {**inputs, "status": UNKNOWN}
    if isinstance(metadata, dict):
        shaped["metadata"] = {**metadata, **{key: UNKNOWN for key in _ASSIGNED_METADATA if key != "managedFields"}}
    return sealed(shaped, token)


def imported_inputs(live: Json, token: Token) -> Properties:
    """Return the inputs that describe a live object, for an import."""
    metadata = {key: value for key, value in (live.get("metadata") or {}).items() if key not in _ASSIGNED_METADATA}
    annotations = {k: v for k, v in (metadata.get("annotations") or {}).items() if k != LAST_APPLIED_ANNOTATION}
    metadata.pop("annotations", None)
    if annotations:
        metadata["annotations"] = annotations
    return sealed({**{key: value for key, value in live.items() if key != "status"}, "metadata": metadata}, token)


def gives_up_replicas(old: Json, new: Json) -> bool:
    """Return whether the old inputs set replicas and the new ones do not, so that another client scales from now on."""
    path = ("spec", "replicas")
    return value_at(old, path) is not MISSING and value_at(new, path) is MISSING


def kept_without_leave(old: Json, new: Json, after: Json) -> tuple[str, ...]:
    """Return the fields that the API server keeps silently although the inputs drop them: a Service stays headless."""
    path = ("spec", "clusterIP")
    dropped = value_at(old, path) == "None" and value_at(new, path) is MISSING
    return (".".join(path),) if dropped and value_at(after, path) == "None" else ()


def comparable(inputs: Properties, identity: Identity | None) -> Json:
    """Return inputs in the form in which two versions are compared.

    A namespace is missing if the kind was not served yet when the inputs were checked. It is then set to the object's.
    """
    obj: Json = plain_cleaned(inputs)
    metadata = obj.get("metadata")
    if identity is not None and identity.namespace and isinstance(metadata, dict) and "namespace" not in metadata:
        return with_value(obj, ("metadata", "namespace"), identity.namespace)  # type: ignore[no-any-return]  # a dict in, a dict out
    return obj
