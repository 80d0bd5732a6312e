"""The meanings of the reasons of Ready, Reconciling and Stalled, and the remedy for each.

`conditions` makes docs/reference/conditions.md from them. MEANINGS has the reasons that have no docstring.
"""

from __future__ import annotations

from program.dialects.status.conditions import Reason

WAIT = "Wait."
MEANINGS = {
    Reason.SERVING: "Every desired replica is ready and runs the current spec.",
    Reason.APPLYING: "The engine applies the service's objects.",
    Reason.MODEL_NOT_READY: "The Model is not Ready yet, or it failed.",
    Reason.REPLICAS_STARTING: "Replicas start, and none of them has a problem.",
    Reason.REPLICAS_STOPPING: "Replicas that are no longer wanted are still running.",
    Reason.WAITING_FOR_GPU: "The scheduler finds no node with enough free GPUs. The service is in the GPU queue.",
    Reason.UNSCHEDULABLE: "The scheduler cannot place a pod for a reason other than GPUs or the model cache.",
    Reason.IMAGE_PULL_FAILED: "The kubelet cannot pull a container's image.",
    Reason.DRIVER_TOO_OLD: "The node's GPU driver is too old for the engine's image.",
    Reason.MODEL_SOURCE_UNAUTHORIZED: "The model's source requires credentials, or refuses those that it got.",
    Reason.MODEL_SOURCE_NOT_FOUND: "The model's source has no such file.",
    Reason.MODEL_SOURCE_UNREACHABLE: "The model's source does not answer.",
    Reason.MODEL_SOURCE_INVALID: "The address of the model's source cannot be used.",
    Reason.MODEL_TRANSFER_OUT_OF_SPACE: "The volume is too small for the model.",
    Reason.MODEL_CHECKSUM_MISMATCH: "The downloaded file does not have the SHA-256 of the Model.",
    Reason.MODEL_CACHE_NOT_WRITABLE: "The pod may not write to the volume of the model cache.",
    Reason.ROLLED_BACK: "A changed pod template failed. The last template that served runs again.",
    Reason.WAITING_FOR_HOST: "No live host is suitable, or the host has not started the process yet.",
    Reason.HOST_LOST: "The host no longer renews its Lease or its heartbeat.",
    Reason.HOST_PROCESS_FAILING: "The process on the host fails. The message has the reason of the HostProcess.",
    Reason.MODEL_NOT_FOUND: (
        "`spec.modelRef` names a Model that does not exist in the namespace. A new or edited service waits five "
        "seconds for it."
    ),
    Reason.SPEC_INVALID: "A value of the spec is invalid. The message has the field.",
}

_CREDENTIALS = "Set `spec.sourceSecretRef` of the Model to a Secret with valid credentials."
_LOGS = "Read the message, and the engine's output with `herdsman logs`. Then correct the spec."
ACTIONS = {
    Reason.SERVING: "Nothing.",
    Reason.ASLEEP: "Nothing: send a request to wake the service.",
    Reason.WAKING: WAIT,
    Reason.STOPPED: "Set `spec.replicas` to start the service.",
    Reason.SUSPENDED: "Remove `spec.suspend` to start the service.",
    Reason.APPLYING: WAIT,
    Reason.MODEL_NOT_READY: (
        "If the service is Stalled, read the Model's conditions and correct the Model. Otherwise wait."
    ),
    Reason.MODEL_DOWNLOADING: "Wait. The Model's `status.download` has the progress of the download.",
    Reason.REPLICAS_STARTING: WAIT,
    Reason.REPLICAS_STOPPING: WAIT,
    Reason.ROLLOUT_DEFERRED: "Wait, or set `spec.rolloutPolicy.force`.",
    Reason.AWAITING_APPROVAL: (
        "Read the message. Then approve the change with `herdsman approve`, or change the spec back."
    ),
    Reason.PAUSED: "Remove the annotation `herdsman.dev/mode`, or set another mode.",
    Reason.POLICY_VIOLATED: "Change the field that the message names, or have the policy changed.",
    Reason.WAITING_FOR_GPU: (
        "Wait, stop another service, or add a node. `status.queuePosition` is the place in the queue."
    ),
    Reason.PREEMPTED: "Wait for free GPUs, or raise `spec.priority`.",
    Reason.NO_NODE_FITS: "Add a node of the size that the message names, or request less.",
    Reason.UNSCHEDULABLE: (
        "Read the scheduler's message in `status.schedulingMessage`. Then change the cluster or the spec."
    ),
    Reason.UNBINDABLE_MODEL_CACHE: (
        "Read the message. Then create the claim, or choose a storage class whose volumes the nodes can mount."
    ),
    Reason.MEMORY_INSUFFICIENT: "Use a smaller model or context, request more memory, or add a larger node or host.",
    Reason.QUOTA_EXCEEDED: "Stop another service of the quota, or raise the GPUQuota.",
    Reason.PODS_REFUSED: "Read the API server's message, and correct what it names.",
    Reason.NODE_LOST: "Repair the node, or remove it from the cluster.",
    Reason.IMAGE_PULL_FAILED: "Correct `spec.image` or `spec.imagePullSecrets`, or make the registry reachable.",
    Reason.OUT_OF_MEMORY: "Raise `spec.resources.memory`, or lower `spec.contextSize` or `spec.parallelSlots`.",
    Reason.DRIVER_TOO_OLD: "Update the driver of the node, or set `spec.image` to an image for the older driver.",
    Reason.CRASH_LOOPING: _LOGS,
    Reason.PROBES_FAILING: _LOGS,
    Reason.COMPLETION_FAILED: _LOGS,
    Reason.POD_FAILING: "Read the message, and correct what it names.",
    Reason.MODEL_SOURCE_UNAUTHORIZED: _CREDENTIALS,
    Reason.MODEL_SOURCE_NOT_FOUND: "Correct `spec.source` of the Model, or put the file there.",
    Reason.MODEL_SOURCE_UNTRUSTED: "Correct the certificate of the source's server, or use another source.",
    Reason.MODEL_SOURCE_UNREACHABLE: "Check the address in `spec.source` of the Model, DNS, and network policies.",
    Reason.MODEL_SOURCE_INVALID: "Correct `spec.source` of the Model.",
    Reason.MODEL_TRANSFER_OUT_OF_SPACE: "Enlarge the volume, or remove unused models from the cache.",
    Reason.MODEL_CHECKSUM_MISMATCH: (
        "Check the source. If the file is the right one, correct `spec.sha256` of the Model."
    ),
    Reason.MODEL_CACHE_NOT_WRITABLE: "Correct `spec.podSecurityContext` (`fsGroup`), or the permissions of the volume.",
    Reason.MODEL_TRANSFER_FAILED: "Read the message, and correct what it names.",
    Reason.PROGRESS_DEADLINE_EXCEEDED: _LOGS,
    Reason.ROLLED_BACK: "Read the message, and change the spec. The loop then tries the new template.",
    Reason.WAITING_FOR_HOST: "Read the message. Start `herdsman agent run` on a suitable host if none is alive.",
    Reason.NO_HOST_FITS: "Read which requirement each host lacks. Then change the service, or add a host.",
    Reason.NOT_ALLOWED_ON_HOST: (
        "Remove the setting, or have the owner of the host allow it in `spec.allow` of the Host."
    ),
    Reason.EVICTED: "Wait, or stop other processes on the host. `spec.evictionProtection` prevents evictions.",
    Reason.SWAPPED_OUT: "Wait until the other service is idle.",
    Reason.HOST_LOST: "Start the host or its agent again. Replicas that may move get another host.",
    Reason.SECRET_UNAVAILABLE: "Put the value on the host as the message describes.",
    Reason.HOST_PROCESS_FAILING: "Look up the reason in the list of [HostProcess](#hostprocess).",
    Reason.DEPENDENCY_MISSING: "Create the object that the message names.",
    Reason.NOT_INSTALLED: "Install the extension that the message names, or remove the field that needs it.",
    Reason.APPLY_FAILED: "Read the message, and correct what it names. The loop tries again.",
    Reason.ENGINE_OUT_OF_MEMORY: "Raise the memory limit of the operator with `herdsman install --memory`.",
    Reason.STATE_UNREACHABLE: "Run `herdsman state doctor`, and correct what it names. The loop tries again.",
    Reason.STATE_LOCKED: (
        "Wait until the other client is done. If it is gone, remove its lock with `herdsman state unlock`."
    ),
    Reason.STATE_SEALED: "Give the operator the right passphrase, or run `herdsman state rekey`.",
    Reason.MODEL_NOT_FOUND: "Create the Model, or correct `spec.modelRef`.",
    Reason.SPEC_INVALID: "Correct the field that the message names.",
    Reason.FOREIGN_OBJECT: "Rename the service or the other object, or delete the other object.",
    Reason.NAMESPACE_TERMINATING: "Wait until the namespace is deleted, or use another namespace.",
}
