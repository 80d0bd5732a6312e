"""KServe's presets and users' arguments may name the older group of pools. Herdsman makes only pools of the current
group, and replaces the older one in arguments.
"""

from __future__ import annotations

import pytest

from kubeapi.json_types import Json
from tests.unit.dialects.kserve.combining import config, main, service
from tests.unit.dialects.kserve.parsing import made, named, pod, pods_of

OLD, TODAY = "inference.networking.x-k8s.io", "inference.networking.k8s.io"


def preset(container: Json) -> Json:
    """Return the scheduler preset of a KServe installation, with these fields of its container."""
    return config("kserve-config-llm-scheduler", {"router": {"scheduler": scheduler(container)}}, "kserve")


def scheduler(container: Json) -> Json:
    pool = {"spec": {"targetPorts": [{"number": 8000}], "endpointPickerRef": {"name": "e", "port": {"number": 9002}}}}
    return {"pool": pool, "template": {"containers": [{"name": "main", "image": "epp:1", **container}]}}


@pytest.mark.parametrize(
    ("given", "told"),
    [
        (["/app/epp", "--pool-group", OLD, "-v", "4"], ["/app/epp", "--pool-group", TODAY, "-v", "4"]),
        (["/app/epp", f"--pool-group={OLD}"], ["/app/epp", f"--pool-group={TODAY}"]),
        (["sh", "-c", f"exec epp --pool-group {OLD} -v 4"], ["sh", "-c", f"exec epp --pool-group {TODAY} -v 4"]),
        (["/app/epp", f"--pool-group={OLD}.example"], ["/app/epp", f"--pool-group={OLD}.example"]),
        (["/app/epp", "--other", OLD], ["/app/epp", "--other", OLD]),
        ([OLD], [OLD]),
    ],
)
def test_an_endpoint_picker_looks_for_the_pool_that_is_made(given: list[str], told: list[str]) -> None:
    cr = service({"router": {"scheduler": {}}})
    by_preset = main(pod(pods_of(made(cr, preset({"command": given})), "scheduler")))
    assert by_preset["command"] == told
    own = service({"router": {"scheduler": scheduler({"args": given})}})
    assert main(pod(pods_of(made(own), "scheduler")))["args"][: len(told)] == told


@pytest.mark.parametrize("field", ["command", "args"])
def test_a_routing_sidecar_lets_prompts_through_to_the_pods_of_that_pool(field: str) -> None:
    sidecar = {"name": "llm-d-routing-sidecar", "image": "s:1", field: ["/app/pd-sidecar", f"--pool-group={OLD}"]}
    cr = service({"prefill": {}, "template": {"initContainers": [sidecar]}})
    found = named(pod(made(cr).main)["initContainers"], "llm-d-routing-sidecar")
    assert found is not None
    assert found[field] == ["/app/pd-sidecar", f"--pool-group={TODAY}"]
