"""Where KServe's recorded statuses are wrong, or tell less than ours: what is right, path by path.

`corrections_kserve` says what the keys are. What was there is told here also while a reference is missing: the peer
leaves it out, though it runs.
"""

from __future__ import annotations

from typing import Any

from tests.conformance.comparison import ABSENT

Json = dict[str, Any]

_POOL = {"group": "inference.networking.k8s.io", "kind": "InferencePool"}
_GATEWAY = {"group": "gateway.networking.k8s.io", "kind": "Gateway"}


def _root(service: str) -> str:
    return f"LLMInferenceService/{service}/status"


def _workloads(service: str, *, ready: int = 0, **others: str) -> Json:
    """The Deployment and Service of a service, and `part=` others with the end of their name or its kind before it."""
    told: Json = {}
    for part, ending in {"primary": "kserve", **others}.items():
        group = ending.startswith("kserve-mn")
        told |= {
            f"{part}/apiGroup": "leaderworkerset.x-k8s.io" if group else "apps",
            f"{part}/kind": "LeaderWorkerSet" if group else "Deployment",
            f"{part}/name": f"{service}-{ending}",
            f"{part}/readyReplicas": ready,
        }
    return {**told, "service/kind": "Service", "service/name": f"{service}-kserve-workload-svc"}


def _scheduler(service: str) -> Json:
    pool = {**_POOL, "name": f"{service}-inference-pool"}
    picker = {"group": "", "kind": "Service", "name": f"{service}-epp-service"}
    return {
        **{f"scheduler/inferencePool/{key}": value for key, value in pool.items()},
        **{f"scheduler/service/{key}": value for key, value in picker.items()},
    }


def _gateway(service: str, namespace: str, *, name: str, home: str) -> Json:
    route = {"group": _GATEWAY["group"], "kind": "HTTPRoute", "name": f"{service}-kserve-route", "namespace": namespace}
    return {
        **{f"gateways/{name}/{key}": value for key, value in {**_GATEWAY, "name": name, "namespace": home}.items()},
        **{f"gateways/{name}/httpRoutes/{service}-kserve-route/{key}": value for key, value in route.items()},
    }


def _addresses(service: str, namespace: str, model: str) -> Json:
    """What clients reach through the gateway of the environment: by header and by two paths."""
    published = f"publishers/{namespace}/models/{model}"
    origin = {**_GATEWAY, "name": "kserve-ingress-gateway", "namespace": "kserve"}
    told: Json = {}
    for index, path in enumerate(("", f"{namespace}/{service}", published)):
        models = (published, model) if path else (published,)
        told |= {
            f"{index}/name": "gateway-external" if path else "gateway-external-model-routing",
            f"{index}/url": f"http://203.0.113.10/{path}",
            **{f"{index}/origin/{key}": value for key, value in origin.items()},
            **{f"{index}/models/{each}/name": each for each in models},
        }
    return told


def _address(service: str, namespace: str) -> Json:
    return {"0/url": f"http://{service}-kserve-workload-svc.{namespace}.svc.cluster.local:8000"}


def _presets(*names: str) -> Json:
    whole = {f"kserve-config-llm-{name}" for name in names}
    return {
        f"{name}/{key}": value
        for name in whole
        for key, value in (("name", name), ("namespace", "kserve"), ("source", "Preset"))
    }


def _conditions(service: str, **told: str) -> Json:
    """Give conditions: `True`, `False`, `False/Reason` where the recording has a reason, `/Reason` for that alone."""
    given: Json = {}
    for kind, said in told.items():
        truth, _, reason = said.partition("/")
        if truth:
            given[f"{_root(service)}/conditions/{kind}/status"] = truth
        if reason:
            given[f"{_root(service)}/conditions/{kind}/reason"] = reason
    return given


def _not_started(service: str, namespace: str) -> Json:
    """A service whose pods could never be made by the peer, and are by us."""
    reasons = ("MainWorkloadReady", "WorkloadsReady", "Ready")
    return {
        f"{_root(service)}/addresses": _address(service, namespace),
        f"{_root(service)}/workloads": _workloads(service),
        f"{_root(service)}/conditions/RouterReady/status": "True",
        **{f"{_root(service)}/conditions/{kind}/reason": "Progressing" for kind in reasons},
    }


def _while_lost(ready: int) -> dict[str, Json]:
    absent = _gateway("lost", "kv-022", name="absent", home="kv-022")
    return {
        "022": {f"{_root('lost')}/router": absent, f"{_root('lost')}/workloads": _workloads("lost", ready=ready)},
        "023": {
            f"{_root('lostref')}/router": _scheduler("lostref"),
            f"{_root('lostref')}/workloads": _workloads("lostref", ready=ready, scheduler="kserve-router-scheduler"),
        },
        "025": {f"{_root('prlost')}/workloads": _workloads("prlost", ready=ready)},
    }


def _members(of: str, *, other: str, weight: int) -> Json:
    """A group's other member, which the peer forgets until the gateway has caught up."""
    there = f"{_root(of)}/router/group/members/{other}"
    backend = {"backendRef/port": 8000, "backendRef/name": f"{other}-inference-pool"}
    return {
        there: {
            **{f"backendRef/{key}": value for key, value in _POOL.items()},
            **backend,
            "name": other,
            "weight": weight,
        }
    }


STATUS: dict[str, Json] = {
    # A merged probe has one handler and a merged volume one type, so that the API server takes the pods.
    "011": _not_started("handler", "kv-011"),
    "012": _not_started("voltype", "kv-012"),
    # Labels of the spec are no part of the selector, so that they may change: pods are replaced.
    "015:step2:": _conditions(
        "lab", MainWorkloadReady="/Progressing", Ready="/Progressing", WorkloadsReady="/Progressing"
    ),
    **{f"{case}:input:": told for case, told in _while_lost(0).items()},
    **{f"{case}:step1:": told for case, told in _while_lost(1).items()},
    # The endpoint picker is made, and waits for its account.
    "027:input:": {
        f"{_root('nosa')}/addresses": _address("nosa", "kv-027"),
        f"{_root('nosa')}/router": _scheduler("nosa"),
        f"{_root('nosa')}/workloads": _workloads("nosa", scheduler="kserve-router-scheduler"),
        f"{_root('nosa')}/conditions/InferencePoolReady/status": "True",
        **{
            f"{_root('nosa')}/conditions/{kind}/reason": "Progressing"
            for kind in ("Ready", "RouterReady", "SchedulerWorkloadReady")
        },
    },
    # It was deleted.
    "027:step1:": {_root("nosa"): ABSENT},
    # An optional ConfigMap may be missing.
    "029": {
        f"{_root('refo')}/addresses": _addresses("refo", "kv-029", "refo"),
        f"{_root('refo')}/appliedConfigs": _presets("scheduler", "router-route", "template"),
        f"{_root('refo')}/router": {
            **_gateway("refo", "kv-029", name="kserve-ingress-gateway", home="kserve"),
            **_scheduler("refo"),
        },
        f"{_root('refo')}/url": "http://203.0.113.10/kv-029/refo",
        f"{_root('refo')}/workloads": _workloads("refo", scheduler="kserve-router-scheduler"),
        **_conditions(
            "refo",
            PresetsCombined="True/PresetsCombined",
            Ready="/HTTPRoutesNotReady",
            HTTPRoutesReady="False",
            InferencePoolReady="False",
            MainWorkloadReady="False",
            RouterReady="False",
            SchedulerWorkloadReady="False",
            WorkloadsReady="False",
        ),
    },
    # A change of weights takes nobody out of the routes.
    "034:step2:": {
        **_members("canary", other="stable", weight=90),
        **_members("stable", other="canary", weight=50),
    },
    # A base config's model name does not go before the service's own.
    "063": {
        f"{_root('bm')}/addresses": _addresses("bm", "kv-063", "from-own"),
        f"{_root('bn')}/addresses": _addresses("bn", "kv-063", "bn"),
    },
    # There are presets for pipelines.
    "106": {
        f"{_root('ppipe')}/addresses": _address("ppipe", "kv-106"),
        f"{_root('ppipe')}/appliedConfigs": _presets("decode-template", "prefill-worker-pipeline-parallel"),
        f"{_root('ppipe')}/workloads": _workloads("ppipe", prefill="kserve-mn-prefill"),
        **_conditions(
            "ppipe",
            MainWorkloadReady="False",
            PrefillWorkerWorkloadReady="False",
            PresetsCombined="True/PresetsCombined",
            Ready="/Progressing",
            RouterReady="True",
            WorkloadsReady="False",
        ),
    },
    # Nobody has said yet that the pods are gone; the peer's Ready stays as it was through every rollout.
    "130:step4:": _conditions("seq", MainWorkloadReady="False", Ready="False", WorkloadsReady="False"),
    # Removing prefill changes a selector, so that there is a new Deployment; its pods have to start.
    "132:step2:": {
        f"{_root('pdr')}/workloads/prefill": ABSENT,
        f"{_root('pdr')}/workloads/primary/readyReplicas": 0,
        f"{_root('pdr')}/conditions/PrefillWorkloadReady": ABSENT,
        **_conditions(
            "pdr",
            MainWorkloadReady="/Progressing",
            Ready="/Progressing",
            RouterReady="False",
            SchedulerWorkloadReady="False",
            WorkloadsReady="/Progressing",
        ),
    },
    "132:step3:": {
        f"{_root('pdr')}/workloads/prefill": ABSENT,
        f"{_root('pdr')}/conditions/PrefillWorkloadReady": ABSENT,
        **_conditions(
            "pdr",
            MainWorkloadReady="True/MainWorkloadReady",
            Ready="True/Serving",
            WorkloadsReady="True/WorkloadsReady",
        ),
    },
    "132:step4:": {
        f"{_root('pdr')}/workloads/prefill/readyReplicas": 0,
        f"{_root('pdr')}/workloads/primary/readyReplicas": 0,
        **_conditions(
            "pdr",
            MainWorkloadReady="False",
            PrefillWorkloadReady="False",
            Ready="False",
            RouterReady="False",
            SchedulerWorkloadReady="False",
            WorkloadsReady="False",
        ),
    },
}
