"""The names of the Kubernetes Services for processes on hosts. Pure."""

from __future__ import annotations

from program.desired.keys import service_dns_name


def hosted_service_name(dialect: str, service: str) -> str:
    """Return the name of the Kubernetes Service for the hosts. It is the name that pods of the dialect would have."""
    if dialect == "llmkube":
        return service_dns_name(service)
    if dialect == "kserve":
        # Imported here, because most clusters have no services of KServe.
        from program.dialects.kserve.naming import workload_service

        return workload_service(service)
    return f"{service}-lb"
