"""HostProcess (`hp`) of herdsman.dev/v1alpha1: the host contract, seen as a custom resource.

`crds.py` generates the CRD from these; the renderer writes specs, the agent writes statuses, both through the contract.
"""

from __future__ import annotations

from agent.contract import HostProcessStatus, ProcessPlan

SPEC = ProcessPlan
STATUS = HostProcessStatus
