"""The table of pod fields is that of the kubernetes package, and a field that is not in it is named with its path."""

from __future__ import annotations

from importlib import resources
from typing import Any

import pytest

from program.desired.errors import SpecInvalid
from program.dialects.pods.fields import POD_SPEC, check_fields
from tools.pod_fields import as_json


def test_the_table_is_what_the_kubernetes_package_says() -> None:
    written = (resources.files("program.dialects.pods") / "pod_fields.json").read_text()
    assert written == as_json(), "run `make crds`"


GOOD: dict[str, Any] = {
    "containers": [
        {
            "name": "main",
            "env": [
                {"name": "A", "value": "1"},
                {"name": "B", "valueFrom": {"resourceFieldRef": {"resource": "limits.cpu", "divisor": 1}}},
            ],
            "resources": {"limits": {"cpu": 4, "memory": "8Gi", "nvidia.com/gpu": "1"}, "claims": [{"name": "c"}]},
            "livenessProbe": {"httpGet": {"path": "/", "port": "http"}, "periodSeconds": 30},
            "startupProbe": {"tcpSocket": {"port": 8000}},
            "securityContext": {"capabilities": {"drop": ["ALL"]}},
        }
    ],
    "volumes": [
        {"name": "shm", "emptyDir": {"medium": "Memory", "sizeLimit": "1Gi"}},
        {"name": "c", "ephemeral": {"volumeClaimTemplate": {"spec": {"resources": {"requests": {"storage": "1Gi"}}}}}},
    ],
    "nodeSelector": {"a": "b"},
    "tolerations": [{"key": "x", "tolerationSeconds": 5}],
    "affinity": None,
}


def test_a_pod_spec_as_kubernetes_takes_it_passes() -> None:
    check_fields(GOOD, POD_SPEC, field="spec.template")


@pytest.mark.parametrize(
    ("change", "field", "why"),
    [
        ({"nodeSelectr": {}}, "nodeSelectr", "did you mean `nodeSelector`?"),
        ({"spec": {"containers": []}}, "spec", "one level up"),
        ({"nothingLikeIt": 1}, "nothingLikeIt", "not a field of a PodSpec; the API server would refuse it"),
        ({"containers": [{"name": "a", "resorces": {}}]}, "containers[0].resorces", "`resources`"),
        ({"containers": [{"env": [{"name": "A", "vale": "1"}]}]}, "containers[0].env[0].vale", "`value`"),
        ({"containers": [{"livenessProbe": {"httpGet": {"prot": 1}}}]}, "containers[0].livenessProbe.httpGet.prot", ""),
        ({"containers": {}}, "containers", "is not a list"),
        ({"tolerations": [{"tolerationSeconds": [5]}]}, "tolerations[0].tolerationSeconds", "plain value"),
        ({"nodeSelector": {"a": ["b"]}}, "nodeSelector[a]", "not a string"),
        ({"volumes": [{"name": "a", "hostPath": "/x"}]}, "volumes[0].hostPath", "not an object"),
    ],
)
def test_what_the_api_server_would_refuse_is_named(change: dict[str, Any], field: str, why: str) -> None:
    with pytest.raises(SpecInvalid) as refused:
        check_fields({**GOOD, **change}, POD_SPEC, field="spec.template")
    assert refused.value.field == f"spec.template.{field}"
    assert why in refused.value.why
