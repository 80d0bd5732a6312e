"""The condition types of each kind and their reasons, as tables of docs/reference/conditions.md.

A test compares the types with those of the dialects, and finds each reason in the code.
"""

from __future__ import annotations

from typing import NamedTuple

from program.desired.adapter import AdapterReason
from program.dialects.kserve.status import conditions as kserve
from program.dialects.kserve.status.config import IN_USE
from program.dialects.status.conditions import Type


class ConditionType(NamedTuple):
    """One condition type of a kind."""

    name: str
    meaning: str
    """Used if the type has no docstring."""
    reasons: tuple[str, ...]


LISTED = "[the list](#reasons-of-ready-reconciling-and-stalled)"
_ONE_OF_LIST = (LISTED,)
_REFUSED = ("ApplyFailed", "ForeignObject")
_KSTATUS = (
    ConditionType(Type.READY, "True: the object matches its spec.", _ONE_OF_LIST),
    ConditionType(Type.RECONCILING, "True: the object does not match its spec yet, and waiting helps.", _ONE_OF_LIST),
    ConditionType(
        Type.STALLED,
        "True: the object cannot match its spec until a person changes something.",
        _ONE_OF_LIST,
    ),
)
COMMON = (
    ConditionType(
        Type.SPEC_HONOURED,
        "False: fields of the spec have no effect. The message names each with the cause.",
        ("AllFieldsHonoured", "FieldsNotHonoured"),
    ),
    ConditionType(
        Type.GPU_AVAILABLE, "False: the scheduler finds no node with enough free GPUs.", ("InsufficientGPU",)
    ),
    ConditionType(Type.MEMORY_FITS, "", ("EstimateFits", "EstimateExceedsNodes", "EstimateExceedsRequest")),
    ConditionType(Type.AUTOSCALER_READY, "", ("ScalingActive", "ScalingFailed", *_REFUSED)),
    ConditionType(Type.OBJECTS_APPLIED, "", _REFUSED),
    ConditionType(Type.CHANGE_PENDING, "", ("AwaitingApproval", "Paused")),
    ConditionType(Type.POLICY_COMPLIANT, "", ("PolicyViolated", "PolicyAdvice")),
    ConditionType(
        Type.DRIFTED,
        "True: another client changed fields of Herdsman's objects. The drift policy is `report`, or the client "
        "changes the fields repeatedly.",
        ("DriftReported", "DriftContested"),
    ),
    ConditionType(
        Type.ROLLOUT_DEFERRED, "", ("PodsBusy", "IdleCheckFailed", "IdleCheckUnsupported", "IdleTimeoutExceeded")
    ),
    ConditionType(Type.ROLLED_BACK, "", ("RolledBack",)),
    ConditionType(Type.TEMPLATE_KEPT, "", ("Adopted",)),
)
_OF_DIALECTS = {
    Type.SPEC_HONOURED: (
        "AllFieldsHonoured",
        "FieldsNotHonoured",
        "if all fields have the same reason, that reason, for example `NotHonoured` or `NotInstalled`",
    ),
    Type.MEMORY_FITS: ("EstimateFits", "EstimateExceedsNodes"),
}
_COMMON_OF_DIALECTS = tuple(each._replace(reasons=_OF_DIALECTS.get(Type(each.name), each.reasons)) for each in COMMON)
INFERENCE_SERVICE = (
    *_KSTATUS,
    ConditionType(
        Type.AVAILABLE,
        "True: a replica serves requests, or the next request wakes one. Absent until the first replica has served.",
        ("InferenceReady", "Asleep", "Waking", "ManuallyScaledToZero", "Suspended", "NoReadyReplicas"),
    ),
    ConditionType(Type.PROGRESSING, "True: replicas are created, or wait.", ("Creating", "WaitingForGPU", "Pending")),
    ConditionType(
        Type.DEGRADED, "True: the service failed, or its last change failed. The message has the cause.", ("Failed",)
    ),
    ConditionType(Type.SUSPENDED, "True: `spec.suspend` is set.", ("Suspended", "NotSuspended")),
    ConditionType(
        Type.VLLM_SPEC_VALID,
        "False: advice on `spec.vllmConfig`. Only with runtime `vllm`.",
        ("ConfigValid", "SpeculativeMissingModel", "CPUOffloadUnverified"),
    ),
    ConditionType(
        Type.SGLANG_SPEC_VALID,
        "False: advice on `spec.sglangConfig`. Only with runtime `sglang`.",
        ("ConfigValid", "SpeculativeMissingConfig", "SpeculativeAcceptThresholdUnused"),
    ),
    ConditionType(
        Type.MODEL_TRANSFER_HEALTHY,
        "",
        ("ModelTransferSucceeded", "the reasons of the list that begin with `Model` and are about a transfer"),
    ),
    ConditionType(Type.DRIVER_COMPATIBLE, "", ("RuntimeStarted", "CUDADriverInsufficient", "ROCmDriverInsufficient")),
    ConditionType(
        Type.GATEWAY_READY,
        "True: the gateway or Ingress controller accepted the route.",
        ("RouteAccepted", "RouteNotAccepted", *_REFUSED),
    ),
    *COMMON,
)
MODEL = (
    *(each._replace(reasons=("as in Available, Progressing or Degraded",)) for each in _KSTATUS),
    ConditionType(
        "Available",
        "True: services can use the Model.",
        ("ModelReady", "WorkloadResolved", "RuntimeResolved", "MetalAgentManaged", "PVCModelReady", "ModelPrefetched"),
    ),
    ConditionType(
        "Progressing",
        "True: the source is read, or the model is fetched before a service needs it.",
        ("SourceProbing", "PrefetchStarted", "PrefetchRunning", "PVCNotBound"),
    ),
    ConditionType(
        "Degraded",
        "True: services cannot use the Model.",
        (
            "SpecInvalid",
            "InvalidFileSet",
            "SourceNotFound",
            "SourceNotAllowed",
            "IntegrityCheckFailed",
            "NotGguf",
            "PVCNotFound",
            "PrefetchInvalid",
            "PrefetchFailed",
        ),
    ),
    ConditionType(
        "SourceDrifted",
        "True: the source has changed since it was first read. Cached copies are of the earlier version.",
        ("InSync", "UpstreamChanged"),
    ),
    ConditionType(
        "SourceVerified",
        "True: Herdsman has read the source, and its SHA-256 matches where it is known.",
        (
            "SourceRead",
            "ChecksumMatched",
            "ChecksumPending",
            "ChecksumNotChecked",
            "ChecksumMismatch",
            "a reason of [missing files](#missing-files)",
        ),
    ),
)
GPU_QUOTA = (
    ConditionType(
        "Ready",
        "True: the quota applies. Reason `OverUsed`: services that existed before the quota use more than it allows.",
        ("InForce", "OverUsed"),
    ),
)
_OF_POLICIES = ConditionType(
    Type.POLICY_COMPLIANT,
    "Exists while the loop has policies. False: the message names each violation. `PolicyViolated`: the version is not "
    "used.",
    ("PoliciesMet", "PolicyViolated", "PolicyAdvice"),
)
_OF_MODES = ConditionType(
    Type.CHANGE_PENDING,
    "Exists in mode Preview and Paused. True: `status.acceptedVersion` is in use, and not the version of the spec. "
    "`NothingPending`: both are the same. `SpecInvalid`: the annotation names no mode.",
    ("NothingPending", "AwaitingApproval", "Paused", "SpecInvalid"),
)
_REFUSED_POLICIES = (*("AuthorizationRequiresJWT", "InvalidAuthorization", "InvalidBudget"),)
MODEL_ROUTER = (
    ConditionType(
        "Validated",
        "True: the spec passed all checks. The other reasons name a part of the spec that has no meaning.",
        ("SpecValid", "SpecInvalid", *_REFUSED_POLICIES),
    ),
    ConditionType(
        "BackendsReady",
        "True: every InferenceService that the router names exists.",
        ("BackendsResolved", "BackendsUnresolved"),
    ),
    ConditionType(
        Type.AVAILABLE,
        "True: at least one backend can answer. `CompileFailed`: the gateway keeps the last valid spec. "
        "`PolicyViolated`: it keeps the last version that the policies allow.",
        ("DeploymentReady", "DeploymentNotReady", "CompileFailed", "PolicyViolated", "AwaitingApproval", "Paused"),
    ),
    ConditionType(
        Type.SPEC_HONOURED,
        "False: the message names the fields that have no effect.",
        ("AllFieldsHonoured", "FieldsNotHonoured"),
    ),
    _OF_POLICIES,
    _OF_MODES,
)
MODEL_POOL = (
    ConditionType(
        Type.READY,
        "True: a member has its turn, or the next request starts one. `ProxyUnavailable`, `Paused`, `SpecInvalid` "
        "and `PolicyViolated`: the pool starts and stops no member.",
        (
            *("TakingTurns", "WaitsForRequests", "MemberFailing", "NoMembers"),
            *("Paused", "ProxyUnavailable", "SpecInvalid", "PolicyViolated"),
        ),
    ),
    ConditionType(
        "SlotAllocated",
        "True: a member has the GPUs. `Swapping`: the next member starts when the pods of the last one are gone.",
        ("Resident", "Swapping", "Free"),
    ),
    ConditionType(
        "MembersValid",
        "False: the message names the members that take no turns, each with the cause. The other members take turns.",
        (
            *("AllResolved", "MissingMembers", "DefaultNotAMember", "InAnotherPool", "InModelGroup"),
            *("MemberAutoscaled", "MemberNotFound", "NotManaged"),
        ),
    ),
    ConditionType(
        "SwapDeferred",
        "True: requests wait for a member that cannot start yet. The reason names what it waits for.",
        ("NotDeferred", "MinimumTurn", "MemberStarting", "MemberFrozen", "PodsRemain"),
    ),
    ConditionType(
        "MetalSupported",
        "Always True. `ModelGroup`: the message names the members that run on hosts.",
        ("KubernetesGPU", "ModelGroup"),
    ),
    _OF_POLICIES,
    _OF_MODES,
)
_OF_ADAPTER = ("[the list](#reasons-of-a-loraadapter)",)
LORA_ADAPTER = (
    *(each._replace(reasons=_OF_ADAPTER) for each in _KSTATUS),
    ConditionType("Loaded", "True: every running replica of the service has loaded the adapter.", _OF_ADAPTER),
    _OF_POLICIES,
    _OF_MODES,
)
ADAPTER_REASONS: dict[str, str] = {
    AdapterReason.SPEC_INVALID: "A value of the spec is invalid. The message has the field.",
}
HOST = (
    ConditionType(
        "Ready",
        "True: the agent runs, or the host answers over SSH. False: Herdsman cannot use the host now.",
        (
            "AgentRunning",
            "AgentStopped",
            "HostLost",
            "Reachable",
            "SpecInvalid",
            "IdentityMissing",
            "IdentityNotReadable",
            "IdentityUnusable",
            "KeyInvalid",
            "Unreachable",
            "AuthenticationFailed",
            "HostKeyUnknown",
            "HostKeyChanged",
            "HostUnsuitable",
            "CommandFailed",
            "SudoRefused",
        ),
    ),
    ConditionType("MemoryPressure", "True: the host is short of memory.", ("Normal", "Warning", "Critical")),
    ConditionType("Schedulable", "True: new services may be placed on the host.", ("Open", "Cordoned", "Draining")),
)
_OF_PODS = (
    "Progressing",
    "ReconcileSingleNodeWorkloadError",
    "ReconcileMultiNodeWorkloadError",
    LISTED,
    "the reason of the Deployment or group",
)
_OF_SCALING = ("HPAProgressing", "ScaledObjectProgressing", "ScalingCRDNotFound", "ReconcileScalingError")
_OF_ROUTER_PODS = ("Progressing", "ApplyFailed", "ForeignObject", LISTED)
_SUMMARY = ("PresetsNotCombined", "the reason of the first part that is not True")
LLM_INFERENCE_SERVICE = (
    ConditionType(
        kserve.PRESETS,
        "True: the service is combined with its presets and configs.",
        ("PresetsCombined", "ConfigNotFound", "CombineBaseError", "InvalidRenderedConfig"),
    ),
    ConditionType(kserve.WORKLOADS, "True: all conditions of pods and scaling are True.", _SUMMARY),
    ConditionType(
        kserve.ROUTER,
        "True: all conditions of gateways, routes, pool, scheduler and tokenizer are True.",
        ("NoRouter", *_SUMMARY),
    ),
    ConditionType(kserve.MAIN, "True: the pods are as wanted. For a Deployment, and for services on hosts.", _OF_PODS),
    ConditionType(kserve.WORKER, "True: the groups of pods are as wanted.", _OF_PODS),
    ConditionType(kserve.PREFILL, "True: the pods for prefill are as wanted.", _OF_PODS),
    ConditionType(kserve.PREFILL_WORKER, "True: the groups of pods for prefill are as wanted.", _OF_PODS),
    ConditionType(kserve.SCALING, "True: the autoscaler works.", _OF_SCALING),
    ConditionType(kserve.PREFILL_SCALING, "True: the autoscaler of prefill works.", _OF_SCALING),
    ConditionType(kserve.GATEWAYS, "True: all gateways are programmed.", ("RefsInvalid", "GatewaysNotReady")),
    ConditionType(
        kserve.ROUTES,
        "True: all routes are accepted.",
        ("RefsInvalid", "HTTPRoutesNotReady", "HTTPRouteReconcileError"),
    ),
    ConditionType(
        kserve.POOL,
        "True: a gateway accepted the InferencePool.",
        ("InferencePoolFetchError", "InferencePoolNotReady", "WaitingForGateway", *_REFUSED),
    ),
    ConditionType(
        kserve.SCHEDULER, "True: the scheduler's pods are as wanted.", ("SchedulerReconcileError", *_OF_ROUTER_PODS)
    ),
    ConditionType(kserve.TOKENIZER, "True: the tokenizer's pods are as wanted.", _OF_ROUTER_PODS),
    ConditionType(kserve.GROUP, "True: a route shares requests among the services of the group.", ("GroupReady",)),
    ConditionType(kserve.DEGRADED, "True: members of the group serve another model.", ("MemberDivergence",)),
)
_OF_CONFIG = ("ConfigValid", "SpecInvalid", "CombineBaseError", "InvalidRenderedConfig")
LLM_INFERENCE_SERVICE_CONFIG = (
    *(each._replace(reasons=_OF_CONFIG) for each in _KSTATUS),
    ConditionType(IN_USE, "True: services use the config.", ("InUse", "NotInUse", "DeletionBlocked")),
)


def _of_llmaz(kind: str, *starting: str) -> tuple[ConditionType, ...]:
    return (
        ConditionType(
            Type.AVAILABLE,
            "True: all wanted replicas are ready. Absent until they were for the first time.",
            (f"{kind}Ready", f"{kind}NotReady", f"{kind}Stopped"),
        ),
        ConditionType(
            Type.PROGRESSING,
            "True: replicas start. `AbortProcessing`: an error prevents Herdsman from making the objects.",
            (*starting, f"{kind}InProgress", f"{kind}Ready", f"{kind}Stopped", "AbortProcessing"),
        ),
    )


PLAYGROUND = _of_llmaz("Playground", "Pending")
LLMAZ_SERVICE = _of_llmaz("Service")
EVERY_SERVICE = "Every service of KServe and llmaz"
KINDS = {
    "InferenceService": INFERENCE_SERVICE,
    "Model": MODEL,
    "GPUQuota": GPU_QUOTA,
    "ModelRouter": MODEL_ROUTER,
    "ModelPool": MODEL_POOL,
    "LoRAAdapter": LORA_ADAPTER,
    "Host": HOST,
    EVERY_SERVICE: (*_KSTATUS, *_COMMON_OF_DIALECTS),
    "LLMInferenceService (KServe)": LLM_INFERENCE_SERVICE,
    "LLMInferenceServiceConfig (KServe)": LLM_INFERENCE_SERVICE_CONFIG,
    "Playground (llmaz)": PLAYGROUND,
    "Service (llmaz)": LLMAZ_SERVICE,
}
_EVERY = "It also has the conditions of [every service](#every-service-of-kserve-and-llmaz)."
NOTES = {
    "Host": "The reasons of `Ready` from `Reachable` on are those of hosts over SSH.",
    "Model": "A condition that LLMKube's controller left behind is set to False with reason `Superseded`.",
    "LLMInferenceService (KServe)": f"{_EVERY} A condition that is True usually has the name of its type as reason. "
    "While the service is stopped by its annotation, the conditions of pods, gateways, routes and pool are False with "
    "reason `Stopped`.",
    "Playground (llmaz)": _EVERY,
    "Service (llmaz)": _EVERY,
}
MISSING_FILES = {
    "ChecksumMismatch": "The file does not have the expected SHA-256.",
    "SizeMismatch": "The file does not have the expected size.",
    "Cancelled": "The download was cancelled because it is no longer wanted.",
}
"""Meanings of the reasons of `agent.sources.errors` without a docstring."""
HOST_PROCESS = {"StartupTimeout": "The health check did not succeed within the startup timeout."}
"""Meanings of the reasons of `agent.contract.ProcessReason` without a docstring."""
