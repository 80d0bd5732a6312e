"""Registers a fleet by the engine's protocol, without Pulumi's SDK (ADR 52).

`automation.engine.fleet_run` uses it for the loop, `program.static.registering` for static fleets. Nothing is global:
two programs in one process share no state.
"""

from __future__ import annotations

import asyncio
from collections.abc import Collection, Coroutine, Sequence
from dataclasses import dataclass
from typing import Any, TypeVar

from pulumi.runtime.proto.resource_pb2 import Result

from components import naming, registrations
from components.registrations import Place, Registration
from components.rendered import RenderedObject
from program.desired.keys import ServiceKey
from program.monitor import EngineEnded, Monitor, RequestFailed
from program.registration_requests import outputs_request, register_request

T = TypeVar("T")


@dataclass(frozen=True)
class MonitorResource:
    """A resource whose registration is under way or done."""

    what: Registration
    urn: asyncio.Task[str]
    """Its URN. Raises RegistrationFailed if the engine could not make it."""


@dataclass(frozen=True)
class MonitorComponent:
    """A component and its objects."""

    token: str
    key: ServiceKey
    resource: MonitorResource
    children: tuple[MonitorResource, ...]


class RegistrationFailed(Exception):
    """The engine could not make a resource. It logs the cause and the URN."""


class MonitorRegistrar:
    """Registers the resources of one run below the stack's root resource. Used in one event loop."""

    def __init__(
        self, monitor: Monitor, *, project: str, stack: str, place: Place | None = None, root: str = ""
    ) -> None:
        """`root` is the URN of the stack's root resource if the SDK has registered it, and ends it.

        Without `root`, the registrar registers the root resource.
        """
        self.stack = stack
        """The name of the stack."""
        self._monitor = monitor
        self._place = place or Place()
        self._tasks: set[asyncio.Task[Any]] = set()
        self._error: BaseException | None = None
        self._ended: EngineEnded | None = None
        self._ends_root = not root
        what = Registration(naming.PULUMI_STACK_TYPE, f"{project}-{stack}", custom=False)
        self._root = MonitorResource(what, self._started(_known(root))) if root else self._register(what, None)

    def component(self, token: str, key: ServiceKey, objects: Sequence[RenderedObject]) -> MonitorComponent:
        """Register a component and its objects. Raises ValueError for an unknown token."""
        resource = self._register_component(registrations.component(registrations.known(token), key, self._place))
        children = tuple(self._register(registrations.child(token, key, obj, self._place), resource) for obj in objects)
        return MonitorComponent(token, key, resource, children)

    def children(self, component: MonitorComponent) -> Sequence[MonitorResource]:
        """Return the objects of the component."""
        return component.children

    def cache_claim(self, claim: RenderedObject) -> MonitorResource:
        """Register the model cache of a namespace, and return its claim."""
        cache = self._register_component(registrations.cache(claim, self._place))
        return self._register(registrations.cache_claim(claim, self._place), cache)

    def complete(self, component: MonitorComponent, last: RenderedObject, after: Collection[str]) -> MonitorResource:
        """Register the last object of a service. The engine skips it if one of the objects in `after` failed."""
        what = registrations.child(component.token, component.key, last, self._place)
        return self._register(what, component.resource, after)

    def complete_after(
        self, component: MonitorComponent, last: RenderedObject, after: Sequence[MonitorResource]
    ) -> MonitorResource:
        """Register the last object of a service after others. If one of them fails, it fails without a request."""
        what = registrations.child(component.token, component.key, last, self._place)
        return MonitorResource(what, self._started(self._urn_after(what, component.resource, after)))

    async def succeeded(self, resource: MonitorResource) -> bool:
        """Wait until the engine is done with the resource. Return False if it failed; `finish` raises a fatal cause."""
        try:
            await resource.urn
        except (RegistrationFailed, RequestFailed, EngineEnded):
            return False
        return True

    async def finish(self) -> None:
        """Wait for all registrations, and end that of the stack if the registrar began it.

        Raises RequestFailed if the engine refused a request, RegistrationFailed if it could not make a component, and
        EngineEnded.
        """
        if self._ends_root:
            self._end_component(self._root)
        while self._tasks:
            await asyncio.wait(self._tasks)
        if (error := self._ended or self._error) is not None:
            raise error

    def _register_component(self, what: Registration) -> MonitorResource:
        made = self._register(what, self._root)
        self._end_component(made)
        return made

    def _register(
        self, what: Registration, parent: MonitorResource | None, after: Collection[str] = ()
    ) -> MonitorResource:
        return MonitorResource(what, self._started(self._urn(what, parent, after)))

    async def _urn(self, what: Registration, parent: MonitorResource | None, after: Collection[str]) -> str:
        parent_urn = await parent.urn if parent is not None else ""
        if self._ended is not None:
            raise EngineEnded(str(self._ended))
        request = register_request(what, parent=parent_urn, after=after, provider=self._place.provider_reference)
        response = await self._monitor.register(request)
        if response.result != Result.SUCCESS:
            raise RegistrationFailed(f"the engine could not make the resource {what.name} [{what.type}]")
        return response.urn

    async def _urn_after(self, what: Registration, parent: MonitorResource, after: Sequence[MonitorResource]) -> str:
        return await self._urn(what, parent, [await each.urn for each in after])

    def _end_component(self, made: MonitorResource) -> None:
        self._started(self._outputs_sent(made))

    async def _outputs_sent(self, made: MonitorResource) -> None:
        try:
            urn = await made.urn
        except RegistrationFailed as error:
            # The objects of a component cannot be registered without it, and the engine would delete existing ones.
            raise RequestFailed(str(error)) from error
        await self._monitor.register_outputs(outputs_request(urn))

    def _started(self, work: Coroutine[Any, Any, T]) -> asyncio.Task[T]:
        task = asyncio.ensure_future(work)
        self._tasks.add(task)
        task.add_done_callback(self._record)
        return task

    def _record(self, task: asyncio.Task[Any]) -> None:
        self._tasks.discard(task)
        if task.cancelled():
            return
        error = task.exception()
        if isinstance(error, EngineEnded):
            self._ended = self._ended or error
        elif error is not None and not isinstance(error, RegistrationFailed):
            self._error = self._error or error


async def _known(urn: str) -> str:
    return urn
