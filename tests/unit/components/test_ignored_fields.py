"""Fields that the loop leaves to other clients: their paths, refused paths, and a fingerprint without them."""

from __future__ import annotations

import pytest

from components import naming
from components.ignored_fields import with_drift_policy
from components.providers.ignored_objects import IgnoredFields
from components.providers.kubernetes_diff import parse_path
from components.providers.kubernetes_ownership import left_to_others
from components.rendered import RenderedObject, RenderedService
from kubeapi.json_types import Json
from program.desired.errors import SpecInvalid
from program.desired.keys import ServiceKey
from program.desired.service import DriftPolicy

MANIFEST: Json = {
    "kind": "Deployment",
    "metadata": {"name": "chat", "namespace": "prod", "labels": {naming.LABEL_SERVICE: "chat", "a.b/c": "d"}},
    "spec": {"template": {"spec": {"containers": [{"name": "one", "image": "1"}, {"name": "two", "image": "2"}]}}},
}
DEPLOYMENT = RenderedObject("deployment", naming.TYPE_SERVICE, MANIFEST)


def ignoring(*paths: str) -> tuple[str, ...]:
    return with_drift_policy(DEPLOYMENT, DriftPolicy(ignored={"Deployment": paths, "Service": ("spec",)})).ignore


def test_paths_lead_to_fields_that_the_object_has() -> None:
    containers = "spec.template.spec.containers"
    assert ignoring(f"{containers}[two].image", "spec.nowhere.at.all") == (f"{containers}[1].image",)
    assert ignoring(f"{containers}[*].image") == (f"{containers}[0].image", f"{containers}[1].image")
    assert ignoring('metadata.labels["a.b/c"]') == ('metadata.labels["a.b/c"]',)
    assert ignoring() == ()


@pytest.mark.parametrize(
    "path",
    [
        "metadata.labels",
        "metadata.*",
        "metadata.name",
        "metadata.ownerReferences",
        f'metadata.labels["{naming.LABEL_SERVICE}"]',
        f'metadata.annotations["{naming.ANNOTATION_APPLIED_HASH}"]',
    ],
)
def test_what_the_loop_finds_its_objects_by_must_stay_ours(path: str) -> None:
    with pytest.raises(SpecInvalid, match="cannot be ignored") as refused:
        ignoring(path)
    assert refused.value.field == "metadata.annotations[herdsman.dev/drift-ignore]"


def test_the_fingerprint_does_not_count_them() -> None:
    key = ServiceKey("llmkube", "prod", "chat")
    policy = DriftPolicy(default="report", ignored={"Deployment": ("spec.template",)})
    plain, left = (RenderedService.of(key, (each,)) for each in (DEPLOYMENT, with_drift_policy(DEPLOYMENT, policy)))
    assert plain.fingerprint == left.fingerprint
    assert plain.objects[-1].manifest == left.objects[-1].manifest
    assert (left.objects[-1].ignore, left.objects[-1].on_drift) == (("spec.template",), "report")


def test_what_is_remembered_of_an_object_is_the_last_said() -> None:
    ignored = IgnoredFields()
    left = with_drift_policy(DEPLOYMENT, DriftPolicy(ignored={"Deployment": ("spec.template",)}))
    ignored.note([left])
    assert ignored.of(MANIFEST) == ("spec.template",)
    ignored.note([DEPLOYMENT])
    assert ignored.of(MANIFEST) == ()


def applied(obj: Json, live: Json, path: str, fields: Json) -> Json:
    entry = {"manager": "herdsman", "operation": "Apply", "fieldsV1": fields}
    return left_to_others(obj, {**live, "metadata": {"managedFields": [entry]}}, [parse_path(path)], "herdsman")


def test_an_ignored_field_of_others_stays_out_of_our_apply_and_one_of_ours_keeps_its_value() -> None:
    obj, live = {"spec": {"type": "a", "x": 1}}, {"spec": {"type": "b", "x": 1}}
    assert applied(obj, live, "spec.type", {"f:spec": {"f:x": {}}}) == {"spec": {"x": 1}}
    assert applied(obj, live, "spec.type", {"f:spec": {"f:type": {}}}) == {"spec": {"type": "b", "x": 1}}


def test_items_are_found_by_name_where_others_put_theirs_in_front() -> None:
    theirs = [{"name": "proxy", "image": "p"}, {"name": "one", "image": "theirs"}]
    live = {"spec": {"template": {"spec": {"containers": theirs}}}}
    found = applied(MANIFEST, live, "spec.template.spec.containers[0].image", {})
    assert found["spec"]["template"]["spec"]["containers"][0] == {"name": "one", "image": "theirs"}
    gone = {"spec": {"template": {"spec": {"containers": theirs[:1]}}}}
    assert applied(MANIFEST, gone, "spec.template.spec.containers[0].image", {}) == MANIFEST
