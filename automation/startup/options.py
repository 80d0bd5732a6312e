"""Derives options from the loop's settings: for the renderers, and for the probe of models. Pure."""

from __future__ import annotations

from agent.sources.source_policy import SourcePolicy
from automation.settings import Settings
from components.render import RenderOptions
from program.desired.hub import Hub


def source_policy(settings: Settings) -> SourcePolicy:
    """Return which sources the loop may probe. A hub that the operator configured may have a private address."""
    hub = Hub.at(settings.hub_url)
    hosts = settings.allowed_remote_hosts
    return SourcePolicy(
        allowed_remote_hosts=(*hosts, hub.base.host) if hub.is_mirror else hosts,
        allowed_host_path_roots=settings.allowed_host_path_roots,
        ca_file=str(settings.ca_cert_file) if settings.ca_cert_file else None,
    )


def render_options(settings: Settings) -> RenderOptions:
    """Return the options of the renderers."""
    return RenderOptions(
        cache_size=settings.model_cache_size,
        cache_storage_class=settings.model_cache_storage_class,
        cache_access_mode=settings.model_cache_access_mode,
        default_fs_group=settings.default_fsgroup,
        init_image=settings.init_container_image,
        ca_configmap=settings.ca_cert_configmap,
        hub_url=settings.hub_url.rstrip("/"),
        prometheus_url=settings.prometheus_url,
        shared_gpu_selector=_pairs(settings.shared_gpu_selector),
        claim_mode=settings.model_cache_mode,
        render_group=settings.dri_render_gid,
        runtime_images=_pairs(settings.runtime_images),
        monitors=settings.pod_monitors,
        metrics_service=settings.external_metrics_service,
        node_path_roots=settings.allowed_host_path_roots,
    )


def _pairs(text: str) -> dict[str, str]:
    """Parse `key=value,…`. A word without `=` has an empty value."""
    words = (word.strip().partition("=") for word in text.split(",") if word.strip())
    return {key.strip(): value.strip() for key, _, value in words}
