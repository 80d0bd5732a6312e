"""Builders of rendered services, whose objects a real API server accepts."""

from __future__ import annotations

from typing import Any

from components import naming
from components.rendered import RenderedObject, RenderedService
from program.desired.keys import ServiceKey

BAD_PORT = 700_000
"""A port that the API server refuses."""
BAD_LIMIT = -1
"""A maximum number of replicas that the API server refuses."""


def key(name: str, namespace: str = "default") -> ServiceKey:
    """Return the key of a service of dialect llmkube."""
    return ServiceKey("llmkube", namespace, name)


def service(
    name: str,
    *,
    namespace: str = "default",
    replicas: int = 1,
    port: int = 8080,
    autoscaled: bool = False,
    max_replicas: int = 3,
    cached: bool = False,
) -> RenderedService:
    """Return a rendered service: a Service and a Deployment, optionally an autoscaler and a shared cache."""
    metadata: dict[str, Any] = {"name": name, "namespace": namespace, "labels": {"app": name}}
    scaler = {
        "apiVersion": "autoscaling/v2",
        "kind": "HorizontalPodAutoscaler",
        "metadata": metadata,
        "spec": {
            "minReplicas": 1,
            "maxReplicas": max_replicas,
            "scaleTargetRef": {"apiVersion": "apps/v1", "kind": "Deployment", "name": name},
        },
    }
    objects = [
        RenderedObject(
            "service",
            naming.TYPE_SERVICE,
            {
                "apiVersion": "v1",
                "kind": "Service",
                "metadata": metadata,
                "spec": {"selector": {"app": name}, "ports": [{"name": "http", "port": port}]},
            },
        ),
        *([RenderedObject("hpa", naming.TYPE_AUTOSCALER, scaler)] if autoscaled else []),
        RenderedObject(
            "deployment",
            naming.TYPE_SERVICE,
            {
                "apiVersion": "apps/v1",
                "kind": "Deployment",
                "metadata": metadata,
                "spec": {
                    "replicas": replicas,
                    "selector": {"matchLabels": {"app": name}},
                    "template": {
                        "metadata": {"labels": {"app": name}},
                        "spec": {"containers": [{"name": "server", "image": "example.invalid/server:1"}]},
                    },
                },
            },
        ),
    ]
    return RenderedService.of(key(name, namespace), tuple(objects), (cache(namespace),) if cached else ())


def cache(namespace: str = "default") -> RenderedObject:
    """Return the cache claim that the services of a namespace share."""
    manifest = {
        "apiVersion": "v1",
        "kind": "PersistentVolumeClaim",
        "metadata": {"name": naming.CACHE_CLAIM, "namespace": namespace},
        "spec": {"accessModes": ["ReadWriteOnce"], "resources": {"requests": {"storage": "1Gi"}}},
    }
    return RenderedObject("claim", naming.TYPE_CACHE, manifest)
