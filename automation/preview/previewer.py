"""Previews services: renders them as the loop does, dry-runs each object, and lists what restarts and is downloaded.

Called by `herdsman preview`, by the loop for services in mode Preview, by rollback and adoption. Sends reads and dry
runs to the API server, and nothing to the engine (docs/adr/0015).
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from itertools import chain, islice
from typing import TYPE_CHECKING, TypeVar

from automation.preview import comparing
from automation.preview.changes import ObjectChange, ServicePreview
from automation.preview.consequences import downloads, restarts, stops
from automation.preview.dry_run import DryRun, dry_run_object
from automation.preview.live import Live
from automation.preview.rendering import Rendering, Subject, render_subject
from automation.reconcile.plan import LiveObject, ObjectName
from components.render import RenderOptions
from components.rendered import RenderedObject, RenderedService
from kubeapi.client import KubeClient
from kubeapi.json_types import Json
from program.desired.service import DesiredService

if TYPE_CHECKING:
    from concurrent.futures import ThreadPoolExecutor

    from components.policies.policy import Policies, Violation

Item = TypeVar("Item")
Answer = TypeVar("Answer")

Progress = Callable[[int, int], None]
"""Called with the number of objects that were dry-run, and the number of all."""


class Previewer:
    """Previews on one cluster. Thread-safe; `threads` is how many requests of one call run at once.

    Every method raises Unreachable or Unauthorized when the API server cannot be asked. Its refusals are part of the
    preview.
    """

    def __init__(
        self,
        client: KubeClient,
        *,
        options: RenderOptions,
        policies: Policies | None = None,
        threads: int = 1,
        notes: Iterable[str] = (),
    ) -> None:
        """`notes` are shown with each preview."""
        self.notes = tuple(notes)
        self._client = client
        self._options = options
        self._policies = policies
        self._threads = threads
        self._pool: ThreadPoolExecutor | None = None

    def preview_rendered(
        self, desired: DesiredService, rendered: RenderedService, *, cr: Json, live: tuple[LiveObject, ...]
    ) -> ServicePreview:
        """Preview a service that a pass of the loop has rendered already; `live` names the objects that it has."""
        found = Live(self._client, self.map)
        found.fetch(rendered.key, (each.name for each in live))
        known = found.objects(rendered.key)
        dry_runs = [
            dry_run_object(self._client, each, known.get(_name(each)), shared=shared) for each, shared in _all(rendered)
        ]
        return self._preview(desired, rendered, [*dry_runs, *_deletions(rendered, live, known)], cr=cr, labels={})

    def preview_services(
        self, subjects: Sequence[Subject], live: Live | None = None, *, on_progress: Progress | None = None
    ) -> tuple[ServicePreview, ...]:
        """Preview many services at once.

        The notes of `live`, which must be empty, name the kinds that could not be read.
        """
        live = live or Live(self._client, self.map)
        live.load([subject.key for subject in subjects], claims=self._options.claim_mode)
        renderings: list[tuple[Subject, Rendering]] = []
        names: list[tuple[object, ...]] = []
        wanted: dict[int, list[tuple[object, ...]]] = {}

        def work() -> Iterator[tuple[int, RenderedObject, bool]]:
            """Render the services. The dry runs of a service begin while the next ones are rendered."""
            known: set[tuple[object, ...]] = set()
            for number, subject in enumerate(subjects):
                labels = live.namespace_labels(subject.key.namespace)
                denies = functools.partial(self._denies, labels) if self.has_policies else None
                rendering = render_subject(subject, live, options=self._options, denies=denies)
                renderings.append((subject, rendering))
                for each, shared in _to_dry_run(rendering, live.objects(subject.key)):
                    # A shared object is dry-run once for all of its services.
                    name: tuple[object, ...] = (subject.key.namespace if shared else number, *_name(each))
                    wanted.setdefault(number, []).append(name)
                    if name not in known:
                        known.add(name)
                        names.append(name)
                        yield number, each, shared

        def dry_run(item: tuple[int, RenderedObject, bool]) -> DryRun:
            number, each, shared = item
            subject = renderings[number][0]
            found = live.objects(subject.key).get(_name(each))
            given = found is not None and found["metadata"].get("uid") in subject.given
            return dry_run_object(self._client, each, found, shared=shared, given=given)

        answers: dict[tuple[object, ...], DryRun] = {}
        for name, answer in zip(names, self.map(dry_run, work()), strict=True):
            answers[name] = answer
            if on_progress is not None:
                on_progress(len(answers), len(names))
        results = {number: [answers[name] for name in each] for number, each in wanted.items()}
        return tuple(
            self._preview_subject(subject, rendering, results.get(number, []), live)
            for number, (subject, rendering) in enumerate(renderings)
        )

    def check_resource(self, cr: Json, namespace_labels: Mapping[str, str]) -> tuple[Violation, ...]:
        """Return the policies that a ModelRouter, ModelPool or LoRAAdapter violates."""
        rules = self._policies
        return rules.check_resource(cr, namespace_labels=namespace_labels) if rules is not None else ()

    def _denies(self, namespace_labels: Mapping[str, str], cr: Json) -> bool:
        return any(each.mandatory for each in self.check_resource(cr, namespace_labels))

    @property
    def has_policies(self) -> bool:
        return self._policies is not None

    def map(self, ask: Callable[[Item], Answer], items: Iterable[Item]) -> Iterable[Answer]:
        """Call `ask` for all items, several at once, and return the answers in the order of the items.

        All items are taken before it returns. With threads, the first calls begin while later items are taken.
        """
        left = iter(items)
        first = list(left if self._threads <= 1 else islice(left, 2))
        if self._threads <= 1 or len(first) <= 1:
            return map(ask, first)
        if self._pool is None:
            from concurrent.futures import ThreadPoolExecutor

            self._pool = ThreadPoolExecutor(self._threads, thread_name_prefix="preview")
        return self._pool.map(ask, chain(first, left))

    def close(self) -> None:
        """End the threads without waiting for their requests."""
        if self._pool is not None:
            self._pool.shutdown(wait=False, cancel_futures=True)

    # --- one service ----------------------------------------------------------------------------------------------

    def _preview_subject(
        self, subject: Subject, rendering: Rendering, dry_runs: list[DryRun], live: Live
    ) -> ServicePreview:
        if rendering.desired is None or rendering.rendered is None:
            return ServicePreview(subject.key, notes=(*subject.notes, *rendering.notes), problem=rendering.problem)
        if not dry_runs:
            dry_runs = [DryRun(ObjectChange("same", each.kind, each.name)) for each, _ in _all(rendering.rendered)]
        known, notes = live.objects(subject.key), [*subject.notes, *rendering.notes]
        if not subject.edited:
            applied = comparing.applied(rendering.rendered, known)
            dry_runs = [_unless_drift_is_reported(each, applied, notes) for each in dry_runs]
        gone = _deletions(rendering.rendered, live.owned(subject.key, subject.cr["metadata"].get("uid")), known)
        return self._preview(
            rendering.desired,
            rendering.rendered,
            [*dry_runs, *gone],
            cr=subject.cr,
            labels=live.namespace_labels(subject.key.namespace),
            notes=tuple(notes),
        )

    def _preview(
        self,
        desired: DesiredService,
        rendered: RenderedService,
        dry_runs: list[DryRun],
        *,
        cr: Json,
        labels: Mapping[str, str],
        notes: tuple[str, ...] = (),
    ) -> ServicePreview:
        rules = self._policies
        violations = rules.check(desired, rendered, cr=cr, namespace_labels=labels) if rules is not None else ()
        return ServicePreview(
            rendered.key,
            tuple(each.change for each in dry_runs),
            restarts=restarts(dry_runs),
            stops=stops(dry_runs),
            downloads=downloads(desired, dry_runs, self._options),
            violations=violations,
            notes=notes,
        )


def _name(each: RenderedObject) -> ObjectName:
    return ObjectName(each.kind, each.name)


def _all(rendered: RenderedService) -> list[tuple[RenderedObject, bool]]:
    """Return all objects in the order in which they are made, and whether each is shared."""
    return [*((each, True) for each in rendered.shared), *((each, False) for each in rendered.objects)]


def _to_dry_run(rendering: Rendering, live: Mapping[ObjectName, Json]) -> list[tuple[RenderedObject, bool]]:
    """Return the objects to dry-run: none where every live object is as it was rendered."""
    if rendering.rendered is None or comparing.is_settled(rendering.rendered, live):
        return []
    return _all(rendering.rendered)


def _unless_drift_is_reported(dry_run: DryRun, applied: Iterable[RenderedObject], notes: list[str]) -> DryRun:
    """Return no change for drift of an applied object that the loop only reports."""
    change = dry_run.change
    each = next((each for each in applied if _name(each) == ObjectName(change.kind, change.name)), None)
    if change.op == "same" or each is None or each.on_drift != "report":
        return dry_run
    what = "was deleted" if change.op == "create" else f"was changed: {', '.join(change.fields)}"
    notes.append(f"drift that the loop reports and does not repair: {change.kind} {change.name} {what}")
    return DryRun(ObjectChange("same", change.kind, change.name), dry_run.live, dry_run.live)


def _deletions(
    rendered: RenderedService, owned: Iterable[LiveObject], known: Mapping[ObjectName, Json]
) -> list[DryRun]:
    wanted = {_name(each) for each in rendered.objects}
    return [
        DryRun(comparing.deleted(each.name, each.uid), known.get(each.name))
        for each in sorted(owned, key=lambda each: each.name)
        if each.name not in wanted
    ]
