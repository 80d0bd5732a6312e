"""Functions that return parts of rendered services: manifests, pods, containers."""

from __future__ import annotations

from typing import Any

from components.options import RenderOptions
from components.render import render
from program.desired.service import DesiredService

OPTIONS = RenderOptions()


def objects(desired: DesiredService, options: RenderOptions = OPTIONS) -> dict[str, dict[str, Any]]:
    """Return all manifests of a service by part, including shared ones."""
    rendered = render(desired, options)
    return {one.part: one.manifest for one in (*rendered.shared, *rendered.objects)}


def deployment_spec(desired: DesiredService, options: RenderOptions = OPTIONS) -> dict[str, Any]:
    spec: dict[str, Any] = objects(desired, options)["deployment"]["spec"]
    return spec


def template(desired: DesiredService, options: RenderOptions = OPTIONS) -> dict[str, Any]:
    found: dict[str, Any] = deployment_spec(desired, options)["template"]
    return found


def pod(desired: DesiredService, options: RenderOptions = OPTIONS) -> dict[str, Any]:
    spec: dict[str, Any] = template(desired, options)["spec"]
    return spec


def container(desired: DesiredService, options: RenderOptions = OPTIONS) -> dict[str, Any]:
    first: dict[str, Any] = pod(desired, options)["containers"][0]
    return first


def init(desired: DesiredService, options: RenderOptions = OPTIONS) -> dict[str, dict[str, Any]]:
    return {one["name"]: one for one in pod(desired, options).get("initContainers", ())}


def plain_env(container: dict[str, Any]) -> dict[str, str]:
    """Return a container's environment variables that have a plain value."""
    return {entry["name"]: entry["value"] for entry in container["env"] if "value" in entry}
