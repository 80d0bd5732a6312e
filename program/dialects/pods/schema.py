"""Parts of a Pod in the schemas of all dialects: environment, probes, security, placement, volumes.

Names and types are those of Kubernetes' core/v1, so that the API server refuses values that a pod cannot have. The
values are copied into the pod template.
"""

from __future__ import annotations

from typing import Annotated

from pydantic import ConfigDict, StringConstraints

from program.dialects.crds.schema import CrdModel, Int64, optional, required

_ATOMIC = ConfigDict(json_schema_extra={"x-kubernetes-map-type": "atomic"})
QUANTITY = (
    r"^(\+|-)?(([0-9]+(\.[0-9]*)?)|(\.[0-9]+))"
    r"(([KMGTPE]i)|[numkMGTPE]|([eE](\+|-)?(([0-9]+(\.[0-9]*)?)|(\.[0-9]+))))?$"
)


Divisor = int | Annotated[str, StringConstraints(pattern=QUANTITY)]
"""A quantity. The pattern applies to a text only: pydantic cannot check one in a number."""


class LocalObjectReference(CrdModel):
    model_config = _ATOMIC
    name: str = optional("Name of an object in the same namespace.", "")


class KeySelector(CrdModel):
    """One key of a Secret or ConfigMap in the same namespace."""

    model_config = _ATOMIC
    key: str = required("Key to read.")
    name: str = optional("Name of the Secret or ConfigMap.", "")
    optional: bool | None = optional("True: a missing object or key is not an error.")


class FieldSelector(CrdModel):
    model_config = _ATOMIC
    api_version: str | None = optional("API version that the path is written for; v1 when absent.")
    field_path: str = required("Path of a field of the pod.")


class FileKeySelector(CrdModel):
    model_config = _ATOMIC
    key: str = required("Key within the env file.")
    optional: bool = optional("True: a missing file or key is not an error.", False)
    path: str = required("Path of the file within the volume; relative, without `..`.")
    volume_name: str = required("Name of the volume mount that holds the file.")


class ResourceFieldSelector(CrdModel):
    model_config = _ATOMIC
    container_name: str | None = optional("Container whose resource is read.")
    divisor: Divisor | None = optional("Unit of the value; 1 when absent.")
    resource: str = required("A request or limit, for example `requests.memory`.")


class EnvVarSource(CrdModel):
    config_map_key_ref: KeySelector | None = optional("A key of a ConfigMap.")
    field_ref: FieldSelector | None = optional("A field of the pod.")
    file_key_ref: FileKeySelector | None = optional("A key of an env file (feature gate EnvFiles).")
    resource_field_ref: ResourceFieldSelector | None = optional("A resource request or limit of the container.")
    secret_key_ref: KeySelector | None = optional("A key of a Secret.")


class EnvVar(CrdModel):
    name: str = required("Name of the variable.")
    value: str | None = optional("Its value; `$(NAME)` expands earlier variables.")
    value_from: EnvVarSource | None = optional("Where the value comes from, instead of `value`.")


class Toleration(CrdModel):
    effect: str | None = optional("Taint effect that is tolerated; empty means all.")
    key: str | None = optional("Taint key; empty with operator Exists means all.")
    operator: str | None = optional("Exists or Equal (the default).")
    toleration_seconds: Int64 | None = optional(
        "Seconds that a NoExecute taint is tolerated; without limit when absent."
    )
    value: str | None = optional("Taint value, for operator Equal.")


class ExecAction(CrdModel):
    command: list[str] = optional("Command run in the container, without a shell.", [], x_kubernetes_list_type="atomic")


class GrpcAction(CrdModel):
    port: int = required("Port of the gRPC service.")
    service: str = optional("Name of the service in the health request.", "")


class HttpHeader(CrdModel):
    name: str = required("Name of the header.")
    value: str = required("Its value.")


class HttpGetAction(CrdModel):
    host: str | None = optional("Host to connect to; the pod's address when absent.")
    http_headers: list[HttpHeader] = optional("Headers to send.", [], x_kubernetes_list_type="atomic")
    path: str | None = optional("Path to request.")
    port: int | str = required("Number or name of the port.")
    scheme: str | None = optional("HTTP (the default) or HTTPS.")


class TcpSocketAction(CrdModel):
    host: str | None = optional("Host to connect to; the pod's address when absent.")
    port: int | str = required("Number or name of the port.")


class Probe(CrdModel):
    exec: ExecAction | None = optional("Run a command in the container.")
    failure_threshold: int | None = optional("Failures in a row until the probe counts as failed.")
    grpc: GrpcAction | None = optional("Ask a gRPC health service.")
    http_get: HttpGetAction | None = optional("Send an HTTP GET request.")
    initial_delay_seconds: int | None = optional("Seconds after the container's start before the first probe.")
    period_seconds: int | None = optional("Seconds between probes.")
    success_threshold: int | None = optional("Successes in a row until the probe counts as passed.")
    tcp_socket: TcpSocketAction | None = optional("Open a TCP connection.")
    termination_grace_period_seconds: Int64 | None = optional("Seconds that the pod has to end after a failed probe.")
    timeout_seconds: int | None = optional("Seconds until one probe times out.")


class AppArmorProfile(CrdModel):
    localhost_profile: str | None = optional("Profile on the node, for type Localhost.")
    type: str = required("Localhost, RuntimeDefault or Unconfined.")


class SeccompProfile(CrdModel):
    localhost_profile: str | None = optional("Profile file on the node, for type Localhost.")
    type: str = required("Localhost, RuntimeDefault or Unconfined.")


class SeLinuxOptions(CrdModel):
    level: str | None = optional("SELinux level.")
    role: str | None = optional("SELinux role.")
    type: str | None = optional("SELinux type.")
    user: str | None = optional("SELinux user.")


class WindowsOptions(CrdModel):
    gmsa_credential_spec: str | None = optional("GMSA credential spec, inline.")
    gmsa_credential_spec_name: str | None = optional("Name of a GMSA credential spec.")
    host_process: bool | None = optional("Run as a host process.")
    run_as_user_name: str | None = optional("User of the entrypoint.")


class Sysctl(CrdModel):
    name: str = required("Name of the kernel parameter.")
    value: str = required("Its value.")


class Capabilities(CrdModel):
    add: list[str] = optional("Capabilities to add.", [], x_kubernetes_list_type="atomic")
    drop: list[str] = optional("Capabilities to drop.", [], x_kubernetes_list_type="atomic")


class PodSecurityContext(CrdModel):
    app_armor_profile: AppArmorProfile | None = optional("AppArmor profile of all containers.")
    fs_group: Int64 | None = optional("Group that owns the pod's volumes.")
    fs_group_change_policy: str | None = optional("OnRootMismatch or Always (the default).")
    run_as_group: Int64 | None = optional("Group of every entrypoint.")
    run_as_non_root: bool | None = optional("Refuse to start as uid 0.")
    run_as_user: Int64 | None = optional("User of every entrypoint.")
    se_linux_change_policy: str | None = optional("How SELinux labels reach volumes: MountOption or Recursive.")
    se_linux_options: SeLinuxOptions | None = optional("SELinux context of all containers.")
    seccomp_profile: SeccompProfile | None = optional("Seccomp profile of all containers.")
    supplemental_groups: list[Int64] = optional(
        "More groups of the first process of each container.", [], x_kubernetes_list_type="atomic"
    )
    supplemental_groups_policy: str | None = optional("Merge (the default) or Strict.")
    sysctls: list[Sysctl] = optional("Kernel parameters of the pod.", [], x_kubernetes_list_type="atomic")
    windows_options: WindowsOptions | None = optional("Settings for Windows nodes.")


class SecurityContext(CrdModel):
    allow_privilege_escalation: bool | None = optional("Whether a process may gain more privileges than its parent.")
    app_armor_profile: AppArmorProfile | None = optional("AppArmor profile of the container.")
    capabilities: Capabilities | None = optional("Capabilities to add and drop.")
    privileged: bool | None = optional("Run privileged.")
    proc_mount: str | None = optional("Kind of the proc mount: Default or Unmasked.")
    read_only_root_filesystem: bool | None = optional("Mount the root file system read-only.")
    run_as_group: Int64 | None = optional("Group of the entrypoint.")
    run_as_non_root: bool | None = optional("Refuse to start as uid 0.")
    run_as_user: Int64 | None = optional("User of the entrypoint.")
    se_linux_options: SeLinuxOptions | None = optional("SELinux context of the container.")
    seccomp_profile: SeccompProfile | None = optional("Seccomp profile of the container.")
    windows_options: WindowsOptions | None = optional("Settings for Windows nodes.")


class LabelSelectorRequirement(CrdModel):
    key: str = required("Key of the label.")
    operator: str = required("In, NotIn, Exists or DoesNotExist.")
    values: list[str] = optional("Values for In and NotIn.", [], x_kubernetes_list_type="atomic")


class LabelSelector(CrdModel):
    model_config = _ATOMIC
    match_expressions: list[LabelSelectorRequirement] = optional(
        "Requirements that all must hold.", [], x_kubernetes_list_type="atomic"
    )
    match_labels: dict[str, str] = optional("Labels that an object must have, all of them.", {})


class TopologySpreadConstraint(CrdModel):
    label_selector: LabelSelector | None = optional("Pods that are counted.")
    match_label_keys: list[str] = optional(
        "Label keys of the pod whose values select the pods too.", [], x_kubernetes_list_type="atomic"
    )
    max_skew: int = required("Maximum difference between the pods of two topology domains.")
    min_domains: int | None = optional("Minimum number of topology domains.")
    node_affinity_policy: str | None = optional("Honor (the default) or Ignore the pod's node affinity.")
    node_taints_policy: str | None = optional("Honor or Ignore (the default) the nodes' taints.")
    topology_key: str = required("Node label whose values are the topology domains.")
    when_unsatisfiable: str = required("DoNotSchedule or ScheduleAnyway.")


class Volume(CrdModel):
    """One volume. Of its many kinds only the name is read; the API server checks the rest with the pod."""

    model_config = ConfigDict(json_schema_extra={"x-kubernetes-preserve-unknown-fields": True})
    name: str = required("Name of the volume.")


class VolumeMount(CrdModel):
    mount_path: str = required("Path of the volume in the container.")
    mount_propagation: str | None = optional("None (the default), HostToContainer or Bidirectional.")
    name: str = required("Name of the volume.")
    read_only: bool | None = optional("Mount it read-only.")
    recursive_read_only: str | None = optional("Disabled, IfPossible or Enabled.")
    sub_path: str | None = optional("Path within the volume.")
    sub_path_expr: str | None = optional("Path within the volume, with `$(NAME)` expanded.")
