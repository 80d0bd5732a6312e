"""A pod spec under construction, to which volumes, mounts, variables, arguments and containers are added.

Services share the spec that it starts from, so that is never changed in place. Only parts that change are copied,
because copies of whole pod specs would take most of a pass's time.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from kubeapi.json_types import Json
from program.dialects.kserve.parse.subject import MAIN, main_container
from program.dialects.kserve.schema.validation import check_pod_spec
from program.runtimes.flags import mentions


class PodDraft:
    """A pod spec that can be extended."""

    def __init__(self, spec: Json, *, field: str) -> None:
        """Start from a pod spec, which is not changed. Raises SpecInvalid below `field` for an invalid one."""
        check_pod_spec(spec, field=field)
        main_container(spec, field=field)
        self.field = field
        self._spec: Json = dict(spec)
        self._containers: list[Json] = [dict(container) for container in spec["containers"]]
        self._inits: list[Json] = [dict(container) for container in spec.get("initContainers") or ()]
        self._volumes: list[Json] = list(spec.get("volumes") or ())

    @property
    def main(self) -> Container:
        """The container that serves."""
        return self.container(MAIN)

    @property
    def service_account(self) -> str:
        """The account that the pod spec names; empty for none."""
        return str(self._spec.get("serviceAccountName") or "")

    def container(self, name: str) -> Container:
        """Return the container of a name. Raises KeyError if there is none."""
        for container in self._containers:
            if container["name"] == name:
                return Container(container)
        raise KeyError(name)

    def find(self, name: str) -> Container | None:
        """Return a container or init container by its name."""
        for container in (*self._containers, *self._inits):
            if container["name"] == name:
                return Container(container)
        return None

    def has_container(self, name: str) -> bool:
        """Return whether a container, not an init container, has this name."""
        return any(container["name"] == name for container in self._containers)

    def set(self, name: str, value: Any) -> None:
        """Set one field of the pod spec."""
        self._spec[name] = value

    def append(self, name: str, value: Any) -> None:
        """Add to a list of the pod spec."""
        self._spec[name] = [*(self._spec.get(name) or ()), value]

    def add_volume(self, volume: Json) -> None:
        """Add a volume, unless the user has one with its name."""
        if all(known["name"] != volume["name"] for known in self._volumes):
            self._volumes.append(volume)

    def add_container(self, container: Json) -> None:
        """Add a container after the others, unless one has its name already."""
        if not self.has_container(container["name"]):
            self._containers.append(container)

    def init_container(self, name: str) -> Container:
        """Return an init container. If none has this name, it is added after the others."""
        for container in self._inits:
            if container["name"] == name:
                return Container(container)
        self._inits.append({"name": name})
        return Container(self._inits[-1])

    def finished(self) -> Json:
        """Return the current pod spec."""
        spec = {**self._spec, "containers": self._containers}
        for name, value in (("initContainers", self._inits), ("volumes", self._volumes)):
            spec.pop(name, None)
            if value:
                spec[name] = value
        return spec


class Container:
    """One container of a draft."""

    def __init__(self, container: Json) -> None:
        """Wrap a container that belongs only to one draft."""
        self._container = container

    def get(self, name: str, default: Any = None) -> Any:
        """Return a field."""
        return self._container.get(name, default)

    def set(self, name: str, value: Any) -> None:
        """Set a field."""
        self._container[name] = value

    def set_within(self, name: str, **values: Any) -> None:
        """Set fields of a field that is an object."""
        self._container[name] = {**(self._container.get(name) or {}), **values}

    def drop(self, *names: str) -> None:
        """Remove fields."""
        for name in names:
            self._container.pop(name, None)

    @property
    def args(self) -> list[str]:
        """The arguments."""
        return [str(arg) for arg in self._container.get("args") or ()]

    def has_flag(self, *names: str) -> bool:
        """Return whether the arguments set one of the flags `names`."""
        return mentions(self.args, *names)

    def add_args(self, *args: str, first: bool = False) -> None:
        """Append arguments, or prepend them (`first`)."""
        own = self._container.get("args") or ()
        self._container["args"] = [*args, *own] if first else [*own, *args]

    def add_env(self, variables: Iterable[Json]) -> None:
        """Add variables, except those whose names exist: these are the user's."""
        known = list(self._container.get("env") or ())
        taken = {variable["name"] for variable in known}
        known.extend(variable for variable in variables if variable["name"] not in taken)
        if known:
            self._container["env"] = known

    def add_mount(self, mount: Json) -> None:
        """Mount a volume, unless a mount with this path exists."""
        mounts = self._container.get("volumeMounts") or ()
        if all(known.get("mountPath") != mount["mountPath"] for known in mounts):
            self._container["volumeMounts"] = [*mounts, mount]

    def mount_at(self, path: str) -> Json | None:
        """Return the mount at a path; None if there is none."""
        mounts: Iterable[Json] = self._container.get("volumeMounts") or ()
        return next((mount for mount in mounts if mount.get("mountPath") == path), None)

    def mounts_in(self, path: str) -> list[Json]:
        """List the mounts below a path."""
        mounts: Iterable[Json] = self._container.get("volumeMounts") or ()
        return [mount for mount in mounts if str(mount.get("mountPath")).startswith(f"{path}/")]

    def replace_mount(self, path: str, mounts: Iterable[Json]) -> None:
        """Replace the mount at a path by others, except for paths that exist: these are the user's."""
        known: Iterable[Json] = self._container.get("volumeMounts") or ()
        taken = {mount.get("mountPath") for mount in known if mount.get("mountPath") != path}
        added = [mount for mount in mounts if mount["mountPath"] not in taken]
        self._container["volumeMounts"] = [
            each for mount in known for each in (added if mount.get("mountPath") == path else [mount])
        ]
