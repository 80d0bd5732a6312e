"""What `pulumi up` runs: a static fleet, the services of the files that the stack's config names.

No loop and no custom resource in the cluster: the files are the desired state, and the stack's state remembers what
was made of them. The same dialect, renderers and components as in the loop. Called by Pulumi's language host.
"""

from __future__ import annotations

import json
from pathlib import Path

import pulumi

from components.render import RenderOptions, render
from components.rendered import RenderedService
from program.desired.errors import DesiredError, SpecInvalid
from program.desired.keys import ANNOTATION_HOST, is_dns_label
from program.desired.service import DesiredService
from program.fleet import fleet
from program.manifests import Manifests

CONFIG = "herdsman"


def static_fleet(root: Path) -> None:
    """Register all services that `herdsman:manifests` names; paths are relative to `root`, the project's folder.

    All or nothing: raises pulumi.RunError, with everything that is wrong, before anything is registered.
    """
    config = pulumi.Config(CONFIG)
    namespace = config.get("namespace") or "default"
    if not is_dns_label(namespace):
        raise pulumi.RunError(f"{CONFIG}:namespace: `{namespace[:64]}` is not the name of a namespace")
    manifests = Manifests(namespace, root)
    for name in _paths(config.get("manifests")):
        manifests.read(name)
    services = _rendered(manifests)
    for note in manifests.notes:
        pulumi.log.warn(note.removeprefix("Warning: "))
    if manifests.errors:
        raise pulumi.RunError("\n".join(manifests.errors))
    fleet(services)


def _paths(value: str | None) -> list[str]:
    """Read `herdsman:manifests`: one path as it is, or a list, which Pulumi hands over as JSON."""
    key = f"{CONFIG}:manifests"
    paths: object = (value or "").strip()
    if isinstance(paths, str):
        try:
            paths = json.loads(paths) if paths.startswith("[") else [paths] if paths else []
        except ValueError:
            paths = [paths]  # a pattern such as [ab].yaml
    if not isinstance(paths, list) or not paths:
        raise pulumi.RunError(f"{key}: names no file; give a path, or a list of paths, relative to Pulumi.yaml")
    for index, path in enumerate(paths):
        if not isinstance(path, str) or not path.strip():
            raise pulumi.RunError(f"{key}[{index}]: is not a path")
    return paths


def _rendered(manifests: Manifests) -> list[RenderedService]:
    for document in manifests.documents:
        if document.namespace != manifests.namespace:
            # Logical names carry no namespace, so two of them would collide in one stack.
            manifests.errors.append(
                f"{document}: metadata.namespace: is `{document.namespace}`, and this stack is for "
                f"`{manifests.namespace}` ({CONFIG}:namespace); make one stack for each namespace"
            )
    rendered = []
    for document, desired in manifests.services():
        try:
            _check_host(desired)
            rendered.append(render(desired, RenderOptions()))
        except DesiredError as error:
            manifests.errors.append(f"{document}: {error}")
    return rendered


def _check_host(desired: DesiredService) -> None:
    if desired.host_placement is not None and desired.host_placement.host is None:
        raise SpecInvalid(
            field=f"metadata.annotations[{ANNOTATION_HOST}]",
            why=f"Model `{desired.model.name}` needs a host; name it here, for in a static fleet no loop chooses one",
        )


if __name__ == "__main__":
    static_fleet(Path(pulumi.get_root_directory()))
