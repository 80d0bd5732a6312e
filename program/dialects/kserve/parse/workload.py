"""The serving and the prefill pods of an LLMInferenceService. Pure.

A replica of one pod is in a Deployment; a group of pods (`worker` is set) is a LeaderWorkerSet. A Deployment's selector
has fixed labels only, because users change pods' labels and a selector cannot change. When prefill is added or removed,
the selector changes, and a new Deployment of the same name replaces the old one.
"""

from __future__ import annotations

from dataclasses import dataclass

from kubeapi.json_types import Json
from program.desired.keys import ANNOTATION_SCALE_BY
from program.desired.workloads import Access, PodGroup, PodSet, ReplicaBounds, Scaler
from program.dialects.kserve import naming
from program.dialects.kserve.parse.accounts import SIDECAR, decoding_access, group_access, prefill_group_access
from program.dialects.kserve.parse.devices import Devices, claim_devices
from program.dialects.kserve.parse.lora import load_adapters
from program.dialects.kserve.parse.pod_draft import PodDraft
from program.dialects.kserve.parse.scaling import own_scaler, scaler_of
from program.dialects.kserve.parse.storage import Weights, add_cache_tiers, add_weights, part_mounts
from program.dialects.kserve.parse.subject import Subject
from program.dialects.kserve.parse.tracing import DECODE, PREFILL, trace_server
from program.dialects.kserve.router.pool_group import name_group_of_today
from program.dialects.request_scaling import OwnScaler


@dataclass(frozen=True)
class ServingPods:
    """A set of pods with the account that they need."""

    pods: PodSet
    access: Access | None = None


def serving_pods(subject: Subject, weights: Weights | None, devices: Devices | None) -> ServingPods:
    """Return the pods that serve. `weights` is None if the user's pods fetch the model."""
    role = "decode" if subject.at("prefill") is not None else "both"
    return _Workload(subject, subject.spec, weights, devices, role=role, field="spec").build()


def prefill_pods(subject: Subject, weights: Weights | None, devices: Devices | None) -> ServingPods | None:
    """Return the pods that prefill; None if the serving pods also prefill."""
    prefill = subject.at("prefill")
    if prefill is None:
        return None
    return _Workload(subject, prefill, weights, devices, role="prefill", field="spec.prefill").build()


class _Workload:
    """The serving or the prefill pods under construction."""

    def __init__(
        self,
        subject: Subject,
        spec: Json,
        weights: Weights | None,
        devices: Devices | None,
        *,
        role: str,
        field: str,
    ) -> None:
        self._subject = subject
        self._spec = spec
        self._weights = weights
        self._devices = devices
        self._role = role
        self._field = field
        self._prefill = role == "prefill"
        self._suffix = naming.PREFILL if self._prefill else ""

    def build(self) -> ServingPods:
        return self._group() if self._spec.get("worker") is not None else self._single()

    def _single(self) -> ServingPods:
        name = self._subject.name
        draft = self._draft(self._spec.get("template"), "template")
        access = None
        if not self._prefill and draft.find(SIDECAR) is not None:
            access = decoding_access(self._subject, draft.service_account)
            draft.set("serviceAccountName", access.service_account)
        own = naming.of_serving_pods(name, f"{naming.WORKLOAD}{self._suffix}", self._role)
        carried = {**self._carried_labels(), **own}
        passed = naming.passed_annotations(self._subject.annotations)
        pods = PodSet(
            part=self._part,
            name=naming.prefill(name) if self._prefill else naming.workload(name),
            labels=carried,
            annotations=passed,
            selector=own,
            template=self._template(draft, carried, passed),
            replicas=self._replicas,
            strategy=_deployment_strategy(self._spec.get("rolloutStrategy")),
            scaler=self._scaler(),
            follows=self._follows,
        )
        return ServingPods(pods, access)

    def _group(self) -> ServingPods:
        name = self._subject.name
        worker = self._draft(self._spec["worker"], "worker")
        leader = self._draft(self._spec["template"], "template") if self._spec.get("template") else None
        access = self._group_account(worker, leader)
        carried = self._carried_labels()
        passed = naming.passed_annotations(self._subject.annotations, group=True)
        leading = naming.of_serving_pods(name, f"{naming.WORKLOAD}{naming.LEADER}{self._suffix}", self._role)
        component = f"{naming.WORKLOAD}{naming.WORKER}{self._suffix}"
        working = naming.of_component(name, component)
        if leader is None:
            # Without a leader, each pod answers requests.
            working = naming.of_serving_pods(name, component, "prefill" if self._prefill else "decode")
        pods = PodSet(
            part=self._part,
            name=naming.prefill_group(name) if self._prefill else naming.group(name),
            labels={**carried, **naming.of_component(name, component)},
            annotations=passed,
            selector=naming.of_service(name),
            template=self._template(worker, {**carried, **working}, passed),
            replicas=self._replicas,
            group=PodGroup(
                size=self._size,
                leader=self._template(leader, {**carried, **leading}, passed) if leader is not None else None,
                restart_policy="RecreateGroupOnPodRestart",
                startup_policy="LeaderCreated",
                sub_group_policy=(
                    {"subGroupPolicyType": "LeaderWorker", "subGroupSize": self._size} if self._prefill else None
                ),
                rollout=_group_rollout(self._spec.get("rolloutStrategy")),
            ),
            scaler=self._scaler(),
            follows=self._follows,
        )
        return ServingPods(pods, access)

    @property
    def _part(self) -> str:
        return "prefill" if self._prefill else "main"

    @property
    def _replicas(self) -> int | None:
        """None keeps the current count: while an autoscaler exists, and if the user sets none."""
        replicas = self._spec.get("replicas")
        own = self._own_scaler
        if own is not None and self._by_requests:
            return own.min_replicas
        return None if replicas is None or self._spec.get("scaling") is not None else int(replicas)

    @property
    def _size(self) -> int:
        """Number of pods of a group: all copies of the model divided by the copies in one pod, or the pipeline
        stages.
        """
        parallelism = self._spec.get("parallelism") or {}
        if parallelism.get("data"):
            return max(1, int(parallelism["data"]) // max(1, int(parallelism.get("dataLocal") or 1)))
        return max(1, int(parallelism.get("pipeline") or 1))

    def _draft(self, pod_spec: Json | None, name: str) -> PodDraft:
        """Return a pod spec with all that its container needs in addition to presets and the user's fields."""
        draft = PodDraft(pod_spec or {}, field=f"{self._field}.{name}")
        subject, main = self._subject, draft.main
        if self._weights is not None:
            add_weights(draft, self._weights, subject)
            load_adapters(main, subject.spec, self._weights.adapters, namespace=subject.namespace)
        add_cache_tiers(draft, self._spec, field=self._field)
        if self._weights is not None:
            part_mounts(draft, self._weights)
        trace_server(main, subject, name=PREFILL if self._prefill else DECODE)
        if self._devices is not None:
            claim_devices(draft, self._devices)
        self._tell_sidecar(draft)
        return draft

    def _tell_sidecar(self, draft: PodDraft) -> None:
        """Set the pool of the routing sidecar, if the service has a router."""
        sidecar = draft.find(SIDECAR)
        if sidecar is None:
            return
        name_group_of_today(sidecar)
        if self._subject.at("router") is not None:
            sidecar.add_env(({"name": "INFERENCE_POOL_NAME", "value": pool_name(self._subject)},))

    def _group_account(self, worker: PodDraft, leader: PodDraft | None) -> Access | None:
        drafts = [draft for draft in (leader, worker) if draft is not None]
        own = drafts[0].service_account
        sidecar = drafts[0].find(SIDECAR) is not None
        if self._prefill:
            access = None if all(d.service_account for d in drafts) else prefill_group_access(self._subject)
        else:
            access = group_access(self._subject, own, sidecar=sidecar)
        if access is not None:
            for draft in drafts:
                if not draft.service_account:
                    draft.set("serviceAccountName", access.service_account)
        return access

    def _carried_labels(self) -> dict[str, str]:
        given = {str(key): str(value) for key, value in (self._spec.get("labels") or {}).items()}
        return {**naming.passed_labels(self._subject.labels), **given}

    def _template(self, draft: PodDraft, pod_labels: dict[str, str], passed: dict[str, str]) -> Json:
        metadata: Json = {"labels": pod_labels}
        annotations = {**passed, **naming.own_annotations(self._spec.get("annotations"))}
        if annotations:
            metadata["annotations"] = annotations
        return {"metadata": metadata, "spec": draft.finished()}

    @property
    def _by_requests(self) -> bool:
        return bool(self._subject.annotations.get(ANNOTATION_SCALE_BY))

    @property
    def _own_scaler(self) -> OwnScaler | None:
        return own_scaler(self._spec.get("scaling"), field=f"{self._field}.scaling", prefill=self._prefill)

    @property
    def _follows(self) -> ReplicaBounds | None:
        """The bounds in which prefill pods follow the serving pods, if the requests scale these."""
        own = self._own_scaler
        if own is None or not self._prefill or not self._by_requests:
            return None
        return ReplicaBounds(least=own.min_replicas, most=own.max_replicas)

    def _scaler(self) -> Scaler | None:
        if self._by_requests:
            return None  # the requests at the gateways scale in its place, in its bounds
        return scaler_of(self._subject, self._spec, prefill=self._prefill, field=self._field)


def pool_name(subject: Subject) -> str:
    """Return the name of the InferencePool for the service's requests: the user's, else Herdsman's."""
    return str(subject.at("router", "scheduler", "pool", "ref", "name") or naming.pool(subject.name))


def _deployment_strategy(rollout: Json | None) -> Json | None:
    given = _given(rollout)
    return {"type": "RollingUpdate", "rollingUpdate": given} if given else None


def _group_rollout(rollout: Json | None) -> Json:
    given = _given(rollout)
    if not given:
        return {"type": "RollingUpdate"}
    return {"type": "RollingUpdate", "rollingUpdateConfiguration": {"maxUnavailable": 1, "maxSurge": 0, **given}}


def _given(rollout: Json | None) -> Json:
    return {name: value for name, value in (rollout or {}).items() if value is not None}
