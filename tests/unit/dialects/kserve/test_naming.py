"""The names of a service's objects, which are those of KServe."""

from __future__ import annotations

import pytest

from program.dialects.kserve import naming
from tests.unit.dialects.kserve.combining import Recorded, recorded


@pytest.mark.parametrize("case", [case for case in recorded() if case.vector.startswith("090")], ids=str)
def test_long_names_are_cut_as_recorded(case: Recorded) -> None:
    name, namespace = case.cr["metadata"]["name"], case.cr["metadata"]["namespace"]
    assert {
        ("Deployment", naming.workload(name)),
        ("Deployment", naming.scheduler(name)),
        ("HTTPRoute", naming.route(name)),
        ("InferencePool", naming.pool(name)),
        ("Role", naming.scheduler_role(name)),
        ("RoleBinding", naming.scheduler_role_binding(name)),
        ("Secret", naming.certificates(name)),
        ("Service", naming.scheduler_service(name)),
        ("Service", naming.workload_service(name)),
        ("ServiceAccount", naming.scheduler_account(name)),
        ("ClusterRoleBinding", naming.scheduler_cluster_binding(namespace, name)),
    } == {(obj["kind"], obj["metadata"]["name"]) for obj in case.made}


@pytest.mark.parametrize("length", [1, 50, 61])
def test_short_names_are_whole(length: int) -> None:
    assert naming.child_name("a" * length, "-b") == "a" * length + "-b"


@pytest.mark.parametrize(
    ("parent", "suffix"), [("a" * 62, "-b"), ("a" * 70, "-kserve-prefill-hpa"), ("a" * 50, "b" * 31)]
)
def test_long_names_fit(parent: str, suffix: str) -> None:
    made = naming.child_name(parent, suffix)
    assert len(made) == 63
    assert made.startswith("a")


def test_what_is_cut_is_told_apart() -> None:
    names = [f"{'a' * 60}{end}" for end in ("1", "2", "3")]
    assert len({naming.workload_service(name) for name in names}) == 3
    long = [naming.child_name("ns", f"-{'b' * 60}{end}") for end in ("1", "2")]
    assert len(set(long)) == 2
    assert all(len(name) == 63 for name in long)
    assert not naming.child_name("n" * 80, "-" * 40).endswith("-")


def test_a_service_has_no_two_objects_of_one_name() -> None:
    """Names are unique within a kind; some ServiceAccounts have the name of their workload."""
    deployments = [naming.workload, naming.prefill, naming.scheduler, naming.tokenizer]
    services = [naming.workload_service, naming.scheduler_service, naming.tokenizer]
    scalers = [naming.autoscaler("a"), naming.autoscaler("a", prefill=True)]
    scaled = [naming.scaled_object("a"), naming.scaled_object("a", prefill=True)]
    for names in ([of("a") for of in deployments], [of("a") for of in services], scalers, scaled):
        assert len(set(names)) == len(names)
    assert naming.published_model("ns", "m") == "publishers/ns/models/m"
