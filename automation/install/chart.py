"""The Helm chart, from the same trees as `herdsman install`: equal values make equal objects. Pure.

`generate` writes charts/herdsman. The CRDs are in the chart's crds/, which Helm installs once, never changes and never
deletes. The schema of the values refuses contradictory options, as `InstallOptions` does.
"""

from __future__ import annotations

import json
from collections.abc import Iterator

from automation.install import identities
from automation.install.blanks import Language, Value, as_yaml, comment
from automation.install.objects import CONDITIONS, Part, parts
from automation.install.options import DECIDED, InstallOptions, default_image, version
from automation.settings import SYSTEM_NAMESPACE, Settings
from kubeapi.json_types import Json
from program.dialects.crds.definitions import crd_files

KEEP = {"helm.sh/resource-policy": "keep"}
"""For objects that outlive the operator: `helm uninstall` keeps them."""
GENERATED = "# Generated from automation/install by `make install-files`."


def _camel(name: str) -> str:
    first, *rest = name.split("_")
    return first + "".join(word.capitalize() for word in rest)


def _is(name: str) -> str:
    return f".Values.{_camel(name)}"


LANGUAGE = Language(
    values={
        **{name: f"{_is(name)} | quote" for name in InstallOptions.model_fields},
        "namespace": ".Release.Namespace",
        "replicas": f"{_is('replicas')} | int",
        "gateway_replicas": f"{_is('gateway_replicas')} | int",
        "gateway_max_replicas": f"{_is('gateway_max_replicas')} | int",
        "settings": _is("settings"),
    },
    conditions={
        "claim": f"not (or {_is('state')} {_is('state_secret')})",
        "claim_class": _is("state_claim_class"),
        "state_url": _is("state"),
        "state_secret": _is("state_secret"),
        "passphrase": _is("passphrase_secret"),
        "metrics": _is("metrics_secret"),
        "pull_secret": _is("pull_secret"),
        "policies": _is("policies"),
        "kserve": _is("kserve"),
        "kserve_alone": f"and {_is('kserve')} (eq (int {_is('replicas')}) 1)",
        "llmaz": _is("llmaz"),
        "external_metrics": _is("external_metrics"),
        "priority_classes": _is("priority_classes"),
        "several": f"gt (int {_is('replicas')}) 1",
        "identities_deny": f'eq {_is("host_identities")} "deny"',
        "identities_warn": f'eq {_is("host_identities")} "warn"',
        # Not by `.Capabilities.APIVersions`: `helm template` knows no kinds of the cluster and would drop the policies.
        "admission_policies": f'semverCompare ">={identities.KUBERNETES}-0" .Capabilities.KubeVersion.Version',
        "gateway": _is("gateway"),
        "gateway_fixed": f"not (int {_is('gateway_max_replicas')})",
        "gateway_metrics": _is("gateway_metrics"),
        "gateway_store": _is("gateway_store_secret"),
        "gateway_audit": _is("gateway_audit_endpoint"),
        "gateway_scales": f"and {_is('gateway')} (int {_is('gateway_max_replicas')})",
        "gateway_ingress": f"and {_is('gateway')} {_is('gateway_ingress_class')}",
        "gateway_route": f"and {_is('gateway')} {_is('gateway_parent')}",
        "gateway_parent_elsewhere": _is("gateway_parent_namespace"),
        "gateway_own_ca": _is("gateway_ca_configmap"),
        "gateway_public_ca": f"not {_is('gateway_ca_configmap')}",
        "console": _is("console"),
        "console_named": _is("console_host"),
        "console_proxied": _is("console_trusted_proxies"),
        "console_ingress": f"and {_is('console')} {_is('console_ingress_class')}",
        "elsewhere": f'ne .Release.Namespace "{SYSTEM_NAMESPACE}"',
    },
)
assert LANGUAGE.conditions.keys() == CONDITIONS.keys()


def chart_files() -> dict[str, str]:
    """Return the content of each file of the chart, by its path in the chart."""
    return {
        "Chart.yaml": _chart(),
        "values.yaml": _values(),
        "values.schema.json": json.dumps(_schema(), indent=2) + "\n",
        "templates/NOTES.txt": _NOTES,
        # `helm show crds` prints the files one after the other and adds no separators.
        **{f"crds/{name}": f"---\n{text}" for name, text in crd_files().items() if "/" not in name},
        **dict(_templates()),
    }


def _chart() -> str:
    text = as_yaml(
        {
            "apiVersion": "v2",
            "name": "herdsman",
            "description": "Serves LLMs on Kubernetes, Macs and Linux hosts, reconciled by Pulumi programs.",
            "type": "application",
            "version": version(),
            "appVersion": version(),
            "kubeVersion": ">=1.27.0-0",
        }
    )
    return f"{GENERATED}\n{text}"


def _defaults() -> Json:
    return {name: field.get_default(call_default_factory=True) for name, field in InstallOptions.model_fields.items()}


def _values() -> str:
    lines = [GENERATED, "# The options of `herdsman install`. The namespace is that of the release."]
    for name, default in _defaults().items():
        if name == "namespace":
            continue
        lines += ["", *comment(InstallOptions.model_fields[name].description or "")]
        lines += as_yaml({_camel(name): default}).splitlines()
    return "\n".join(lines) + "\n"


def _schema() -> Json:
    found = InstallOptions.model_json_schema()["properties"]
    properties: Json = {}
    for name, schema in found.items():
        if name == "namespace":
            continue
        kept = {key: value for key, value in schema.items() if key not in ("title", "default")}
        properties[_camel(name)] = kept
    properties["image"]["default"] = default_image()
    names = sorted(set(Settings.model_fields) - DECIDED)
    properties["settings"] |= {"additionalProperties": {"type": "string"}, "propertyNames": {"enum": names}}
    properties["state"] |= {"pattern": "^$|^[a-z0-9]+://", "not": {"pattern": "^file:|://[^/@]*:[^/@]*@"}}

    def given(*options: str) -> Json:
        each = [
            {"properties": {_camel(name): {"minLength": 1}}, "required": [_camel(name)], "type": "object"}
            for name in options
        ]
        return each[0] if len(each) == 1 else {"anyOf": each}

    return {
        "$schema": "http://json-schema.org/draft-07/schema#",
        "type": "object",
        "properties": {**properties, "global": {"type": "object"}},
        "additionalProperties": False,
        "allOf": [
            {
                "if": {"properties": {"replicas": {"minimum": 2}}, "required": ["replicas"]},
                "then": given("state", "state_secret"),
            },
            {"if": given("state", "state_secret"), "then": given("passphrase_secret")},
            {"not": {"allOf": [given("state"), given("state_secret")]}},
            {"if": given("gateway_ingress_class", "gateway_parent"), "then": given("gateway_host")},
            {"if": given("console_ingress_class"), "then": given("console_host")},
        ],
    }


def _templates() -> Iterator[tuple[str, str]]:
    """Yield one file for each object. Objects of one kind and name in different namespaces share a file."""
    texts: dict[str, list[str]] = {}
    for part in parts():
        if part.kind == "CustomResourceDefinition":
            continue
        name = part.tree["metadata"]["name"]
        if isinstance(name, Value):
            continue  # Helm makes the release's namespace
        texts.setdefault(f"templates/{part.kind.lower()}-{name}.yaml", []).append(_template(part))
    for path, documents in texts.items():
        yield path, f"{GENERATED}\n" + "---\n".join(documents)


def _template(part: Part) -> str:
    tree = part.tree
    if part.stage != "operator":
        tree = {**tree, "metadata": {**tree["metadata"], "annotations": KEEP}}
    text = "".join(f"{line}\n" for line in comment(part.why)) if part.why else ""
    text += as_yaml(tree, LANGUAGE)
    if part.condition:
        text = "{{- if " + LANGUAGE.conditions[part.condition] + " }}\n" + text + "{{- end }}\n"
    return text


_NOTES = """\
Herdsman {{ .Chart.AppVersion }} runs in {{ .Release.Namespace }}.

  kubectl -n {{ .Release.Namespace }} rollout status deployment/herdsman
  herdsman doctor

Helm does not change existing CRDs. Before each upgrade, apply those of the new chart (CHART is its archive, folder or
name):

  helm show crds CHART | kubectl apply --server-side --force-conflicts -f -

`helm uninstall` removes only the operator. Models, services, running replicas, CRDs, PriorityClasses, the roles of
agents and the claim with the engine's state stay.
"""
