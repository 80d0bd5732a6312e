"""Presets that changed since the first release: new pods get the current presets, running pods keep the old ones."""

from __future__ import annotations

from typing import Any

from components import naming
from components.options import RenderOptions
from components.providers.kubernetes_templates import as_made
from components.render import render
from kubeapi.json_types import Json
from program.dialects.kserve import presets
from tests.unit.dialects.kserve.combining import service
from tests.unit.dialects.kserve.parsing import made, named, parsed, pod, pods_of, variables

SIDECAR = "llm-d-routing-sidecar"
ROUTER: Json = {"router": {"scheduler": {}, "route": {}, "gateway": {}}}
PARALLEL: Json = {"parallelism": {"data": 4, "dataLocal": 1}, "worker": {}}
PREDICTING: Json = {"config": {"inline": {"plugins": [{"type": "predicted-latency-producer"}]}}}


def manifests(spec: Json) -> dict[str, Json]:
    rendered = render(parsed(service(spec)).desired, RenderOptions())
    return {each.name: each.manifest for each in rendered.objects if each.kind in ("Deployment", "LeaderWorkerSet")}


def before(manifest: Json, spec: Json) -> Json:
    """Return a rendered object with the presets of the first release, which hashes are computed from."""
    (found,) = (
        each.counted
        for each in render(parsed(service(spec)).desired, RenderOptions()).objects
        if each.manifest == manifest
    )
    return found


def test_workers_that_decode_in_data_parallel_groups_get_random_dummy_inputs() -> None:
    main = made(service({**ROUTER, **PARALLEL, "prefill": {}})).main
    assert main.group is not None and main.group.leader is not None
    (worker,), leader = pod(main)["containers"], main.group.leader["spec"]["containers"][0]
    assert variables(worker)["VLLM_RANDOMIZE_DP_DUMMY_INPUTS"]["value"] == "1"
    assert "VLLM_RANDOMIZE_DP_DUMMY_INPUTS" not in variables(leader)
    alone = made(service({**ROUTER, **PARALLEL})).main
    assert "VLLM_RANDOMIZE_DP_DUMMY_INPUTS" not in variables(pod(alone)["containers"][0])


def test_the_routing_sidecar_has_the_seccomp_profile_of_the_runtime() -> None:
    for spec in ({}, PARALLEL):
        main = made(service({**ROUTER, **spec, "prefill": {}})).main
        template = main.template if main.group is None else main.group.leader
        assert template is not None
        sidecar = named(template["spec"]["initContainers"], SIDECAR)
        assert sidecar is not None
        assert sidecar["securityContext"]["seccompProfile"] == {"type": "RuntimeDefault"}


def test_the_latency_predictor_has_what_its_servers_need() -> None:
    spec = pod(pods_of(made(service({"router": {"scheduler": PREDICTING}})), "scheduler"))
    servers = {each["name"]: each for each in spec["containers"] if each["name"].endswith("-server")}
    assert set(servers) == {"training-server", "prediction-server"}
    volumes = {each["name"]: each for each in spec["volumes"]}
    for name, server in servers.items():
        assert {"startupProbe", "livenessProbe", "readinessProbe"} <= server.keys()
        assert server["securityContext"]["readOnlyRootFilesystem"] and server["securityContext"]["runAsNonRoot"]
        # The servers write models and temporary files, and the root filesystem is read-only.
        mounts = {each["mountPath"]: each["name"] for each in server["volumeMounts"]}
        assert "/tmp" in mounts
        assert all("emptyDir" in volumes[volume] for volume in mounts.values())
        paths = [v["value"] for v in server["env"] if v["name"].endswith("_PATH")]
        assert len(paths) == 6
        assert all(any(path.startswith(f"{mount}/") for mount in mounts) for path in paths), name
    assert servers["prediction-server"]["resources"]["limits"] == {"cpu": "28", "memory": "8Gi"}
    assert servers["training-server"]["resources"]["requests"] == {"cpu": "2", "memory": "4Gi"}
    assert "command" not in servers["prediction-server"]
    main = variables(next(each for each in spec["containers"] if each["name"] == "main"))
    assert main["LATENCY_MAX_SAMPLE_SIZE"]["value"] == "10000"


def test_pods_of_the_release_before_keep_their_presets() -> None:
    for spec in (
        {**ROUTER, "prefill": {}},
        {**ROUTER, **PARALLEL, "prefill": {}},
        {"router": {"scheduler": PREDICTING}},
    ):
        changed = 0
        for manifest in manifests(spec).values():
            running = before(manifest, spec)
            changed += running["spec"] != manifest["spec"]
            kept = as_made(manifest, running)
            assert kept["spec"] == running["spec"]
        assert changed == 1


def test_a_change_of_the_service_brings_the_presets() -> None:
    spec: dict[str, Any] = {**ROUTER, "prefill": {}}
    edited = {**spec, "template": {"containers": [{"name": "main", "image": "registry.example/engine:2"}]}}
    for name, manifest in manifests(edited).items():
        running = before(manifests(spec)[name], spec)
        sidecar = named(as_made(manifest, running)["spec"]["template"]["spec"].get("initContainers"), SIDECAR)
        assert sidecar is None or "seccompProfile" in sidecar["securityContext"]


def test_a_seccomp_profile_that_the_user_wrote_counts() -> None:
    own = {"name": SIDECAR, "securityContext": {"seccompProfile": {"type": "RuntimeDefault"}}}
    spec: Json = {**ROUTER, "prefill": {}}
    hashes = [
        manifests({**spec, **more})["chat-kserve"]["metadata"]["annotations"][naming.ANNOTATION_TEMPLATE_HASH]
        for more in ({}, {"template": {"initContainers": [own]}})
    ]
    assert hashes[0] != hashes[1]


def test_what_is_counted_of_presets_is_no_preset() -> None:
    assert not any("counted" in name for name in presets.names())
    assert presets.is_counted_otherwise("kserve-config-llm-decode-template")
    assert not presets.is_counted_otherwise("kserve-config-llm-template")
