"""The names of the Kubernetes Services for processes on hosts. Pure."""

from __future__ import annotations

from program.desired.keys import service_dns_name


def hosted_service_name(dialect: str, service: str) -> str:
    """Name the Kubernetes Service that leads to the hosts: as clients know it from the pods of that dialect."""
    if dialect == "llmkube":
        return service_dns_name(service)
    if dialect == "kserve":
        # Imported here: most clusters have none of these.
        from program.dialects.kserve.naming import workload_service

        return workload_service(service)
    return f"{service}-lb"
