"""Service of inference.llmaz.io/v1alpha1: pods as the user writes them, also groups of several, with models fetched.

`services` reads objects through `ServiceSpec`; `crds` generates the CRD from it.
"""

from __future__ import annotations

from typing import Any, Literal

from pydantic import ConfigDict

from program.dialects.crd_schema import CrdModel, optional, required, rule
from program.dialects.llmaz.playground_schema import ModelClaims
from program.dialects.llmaz.pod_schema import PodTemplate

RestartPolicy = Literal["Default", "RecreateGroupOnPodRestart", "None"]


class WorkerTemplate(PodTemplate):
    model_config = ConfigDict(
        json_schema_extra={
            "x-kubernetes-validations": [
                rule(
                    "self.spec.containers.exists(c, c.name == 'model-runner')",
                    "one of the containers must be `model-runner`",
                    field=".spec.containers",
                )
            ]
        }
    )


class WorkloadTemplate(CrdModel):
    leader_template: PodTemplate | None = optional("The leader of a group; like the workers when absent.")
    restart_policy: RestartPolicy = optional(
        "What a restarted container means to its group.", "RecreateGroupOnPodRestart"
    )
    size: int = optional("Pods of a group, the leader among them.", 1, ge=1)
    sub_group_policy: dict[str, Any] | None = optional("Parts of a group, as a LeaderWorkerSet writes them.")
    worker_template: WorkerTemplate = required("The workers, or the one pod.")


class RollingUpdateConfiguration(CrdModel):
    max_surge: int | str = optional("Replicas beyond the number while a change rolls out.", 0)
    max_unavailable: int | str = optional("Replicas that may be away while a change rolls out.", 1)
    partition: int | None = optional("Groups below this index keep the old template.", ge=0)


class RolloutStrategy(CrdModel):
    rolling_update_configuration: RollingUpdateConfiguration | None = optional("How a change rolls out.")
    type: Literal["RollingUpdate"] = optional("Replicas are replaced in steps.", "RollingUpdate")


class ServiceSpec(CrdModel):
    """What is served."""

    model_claims: ModelClaims | None = optional("The models that pods fetch.")
    replicas: int = optional("Pods, or groups of pods.", 1, ge=0)
    rollout_strategy: RolloutStrategy | None = optional("How a change rolls out.")
    workload_template: WorkloadTemplate = required("The pods.")
