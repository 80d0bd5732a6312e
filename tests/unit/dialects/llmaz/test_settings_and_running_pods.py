"""Edits of llmaz-global-config: new pods get the new settings; running pods keep the old ones until a change."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from automation.adoption.kept_templates import keeps_template, request_hash
from automation.drift.field_drift import fields_of
from components import naming
from components.options import RenderOptions
from components.providers.kubernetes_templates import as_made
from components.render import render
from components.rendered import RenderedObject, RenderedService
from kubeapi import kinds
from kubeapi.json_types import Json
from program.dialects.llmaz.dialect import PLAYGROUNDS, SERVICES
from tests.unit.dialects.llmaz.objects import Cluster, made, open_model, playground, runner, service

OLD, NEW = "registry.example/loader:1", "registry.example/loader:2"


def settings(image: str, scheduler: str = "") -> Json:
    text = f"init-container-image: {image}\n" + (f"scheduler-name: {scheduler}\n" if scheduler else "")
    return {**made(kinds.CONFIG_MAPS, "llmaz-global-config", {}), "data": {"config.data": text}}


def rendered(cr: Json, *things: Json) -> RenderedService:
    dialect = PLAYGROUNDS if cr["kind"] == "Playground" else SERVICES
    return render(dialect.parse(cr, Cluster(open_model(), *things)).desired, RenderOptions())


def workload(found: RenderedService) -> Json:
    return found.objects[-1].manifest


def pod(manifest: Json) -> Json:
    spec = manifest["spec"]
    template = spec["template"] if "template" in spec else spec["leaderWorkerTemplate"]["workerTemplate"]
    found: Json = template["spec"]
    return found


def loader(manifest: Json) -> Json:
    return next(each for each in pod(manifest)["initContainers"] if each["name"] == "model-loader")


def group() -> Json:
    template = {"spec": {"containers": [runner()]}}
    return service(template={"size": 2, "leaderTemplate": template})


def alone(**pod_spec: Any) -> Json:
    return service(template={"workerTemplate": {"spec": {"containers": [runner()], **pod_spec}}})


@pytest.mark.parametrize("cr", [playground(), group()], ids=["playground", "group"])
def test_an_edit_of_the_settings_is_no_change_of_a_service(cr: Json) -> None:
    before, after = rendered(cr, settings(OLD)), rendered(cr, settings(NEW, "mine"))
    assert before.fingerprint == after.fingerprint
    assert loader(workload(after))["image"] == NEW
    assert pod(workload(after))["schedulerName"] == "mine"


@pytest.mark.parametrize("cr", [playground(), group()], ids=["playground", "group"])
def test_pods_keep_the_settings_that_they_were_made_with(cr: Json) -> None:
    running = workload(rendered(cr, settings(OLD, "theirs")))
    for now in (settings(NEW, "mine"), settings(NEW), settings("inftyai/model-loader:v0.0.10")):
        assert as_made(workload(rendered(cr, now)), running) == running


def test_pods_of_a_release_before_keep_the_default_settings() -> None:
    running = workload(rendered(playground()))
    assert naming.ANNOTATION_UNCOUNTED not in running["metadata"]["annotations"]
    assert as_made(workload(rendered(playground(), settings(NEW, "mine"))), running) == running


def test_a_change_of_the_service_brings_the_settings() -> None:
    running = workload(rendered(playground(), settings(OLD)))
    changed = playground(backendRuntimeConfig={"envs": [{"name": "A", "value": "1"}]})
    wanted = workload(rendered(changed, settings(NEW, "mine")))
    assert as_made(wanted, running) == wanted
    assert loader(wanted)["image"] == NEW


def test_a_scheduler_that_the_user_wrote_counts() -> None:
    own = alone(schedulerName="own")
    assert rendered(own).fingerprint != rendered(alone()).fingerprint
    assert pod(workload(rendered(own, settings(NEW, "mine"))))["schedulerName"] == "own"


def test_a_value_that_somebody_else_set_is_not_kept() -> None:
    running = workload(rendered(playground(), settings(OLD)))
    ours = {"f:spec": {"f:template": {"f:spec": {"f:initContainers": {'k:{"name":"model-loader"}': {"f:name": {}}}}}}}
    entry = {"manager": "herdsman", "operation": "Apply", "fieldsV1": ours}
    live = {**running, "metadata": {**running["metadata"], "managedFields": [entry]}}
    loader(live)["image"] = "registry.example/by-hand:1"
    wanted = workload(rendered(playground(), settings(NEW)))
    assert loader(as_made(wanted, live, field_manager="herdsman"))["image"] == NEW


def test_what_pods_keep_is_no_drift() -> None:
    running = workload(rendered(playground(), settings(OLD, "theirs")))
    (*_, wanted) = rendered(playground(), settings(NEW)).objects
    assert fields_of(wanted, running) == ()


def test_an_adopted_service_keeps_its_template_over_the_upgrade() -> None:
    (*_, wanted) = rendered(playground(), settings(OLD)).objects
    for asked in (request_hash(wanted), request_hash(replace(wanted, counted_spec=None))):
        noted = {**running_of(wanted), naming.ANNOTATION_KEPT_TEMPLATE: f"digest.{asked}"}
        assert keeps_template("llmaz", "digest", wanted, {"metadata": {"annotations": noted}})


def running_of(wanted: RenderedObject) -> Json:
    return dict(wanted.manifest["metadata"]["annotations"])


def test_a_loader_gets_the_variables_of_the_engine_and_not_of_a_sidecar() -> None:
    sidecar = {"name": "proxy", "image": "proxy:1", "env": [{"name": "HTTPS_PROXY", "value": "http://127.0.0.1:1"}]}
    engine = runner(env=[{"name": "HF_ENDPOINT", "value": "https://hub.example"}])
    manifest = workload(rendered(alone(containers=[sidecar, engine])))
    names = [each["name"] for each in loader(manifest)["env"]]
    assert "HF_ENDPOINT" in names
    assert "HTTPS_PROXY" not in names
