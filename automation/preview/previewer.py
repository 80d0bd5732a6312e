"""Previews services: renders them as the loop does, tries each object out by a dry run, and says what would follow.

Called by `herdsman preview`, by the loop for services in mode Preview, by rollback and adoption. Calls the API server
for reads and dry runs only; docs/adr/0015 says why it and not the engine is asked.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
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

    from components.policies.policy import Policies

Item = TypeVar("Item")
Answer = TypeVar("Answer")

Progress = Callable[[int, int], None]
"""Is told how many objects of how many were tried out."""


class Previewer:
    """Previews on one cluster. Thread-safe; `threads` is how many requests of one call run at once.

    Every method raises Unreachable or Unauthorized when the API server cannot be asked. What it refuses stands in the
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

    def objects(
        self, rendered: RenderedService, *, owner: str | None, live: tuple[LiveObject, ...] | None = None
    ) -> tuple[ObjectChange, ...]:
        """Try out all objects of a service; deletions are told last.

        `owner` is the uid of the custom resource, `live` what is known to exist for it; None: it is looked up.
        """
        return tuple(each.change for each in self._dry_runs(rendered, owner=owner, live=live))

    def compared(
        self,
        desired: DesiredService,
        rendered: RenderedService,
        *,
        cr: Json,
        live: tuple[LiveObject, ...] | None = None,
        namespace_labels: Mapping[str, str] | None = None,
        notes: Iterable[str] = (),
    ) -> ServicePreview:
        """Preview a service that was rendered already, as in a pass of the loop."""
        dry_runs = self._dry_runs(rendered, owner=cr["metadata"].get("uid"), live=live)
        return self._preview(desired, rendered, dry_runs, cr=cr, labels=namespace_labels or {}, notes=tuple(notes))

    def services(
        self, subjects: Sequence[Subject], live: Live | None = None, *, on_progress: Progress | None = None
    ) -> tuple[ServicePreview, ...]:
        """Preview many services at once. `live`, one that nothing was loaded into yet, keeps what could not be read."""
        live = live or Live(self._client, self.map)
        live.load([subject.key for subject in subjects], claims=self._options.claim_mode)
        plans = [(subject, render_subject(subject, live, options=self._options)) for subject in subjects]
        work: dict[tuple[object, ...], tuple[int, RenderedObject, bool]] = {}
        wanted: dict[int, list[tuple[object, ...]]] = {}
        for number, (subject, plan) in enumerate(plans):
            for each, shared in _untried(plan, live.objects(subject.key)):
                # What services share is tried out once for all of them.
                name: tuple[object, ...] = (subject.key.namespace if shared else number, *_name(each))
                work.setdefault(name, (number, each, shared))
                wanted.setdefault(number, []).append(name)

        def tried(item: tuple[int, RenderedObject, bool]) -> DryRun:
            number, each, shared = item
            subject = plans[number][0]
            found = live.objects(subject.key).get(_name(each))
            given = found is not None and found["metadata"].get("uid") in subject.given
            return dry_run_object(self._client, each, found, shared=shared, given=given)

        answers: dict[tuple[object, ...], DryRun] = {}
        for name, answer in zip(work, self.map(tried, work.values()), strict=True):
            answers[name] = answer
            if on_progress is not None:
                on_progress(len(answers), len(work))
        results = {number: [answers[name] for name in names] for number, names in wanted.items()}
        return tuple(
            self._of_plan(subject, plan, results.get(number, []), live) for number, (subject, plan) in enumerate(plans)
        )

    def map(self, ask: Callable[[Item], Answer], items: Iterable[Item]) -> Iterable[Answer]:
        """Ask for all items, several at once, and give the answers in their order."""
        listed = list(items)
        if self._threads <= 1 or len(listed) <= 1:
            return map(ask, listed)
        if self._pool is None:
            from concurrent.futures import ThreadPoolExecutor

            self._pool = ThreadPoolExecutor(self._threads, thread_name_prefix="preview")
        return self._pool.map(ask, listed)

    def close(self) -> None:
        """End the threads; what is under way is not waited for."""
        if self._pool is not None:
            self._pool.shutdown(wait=False, cancel_futures=True)

    # --- one service ----------------------------------------------------------------------------------------------

    def _dry_runs(
        self, rendered: RenderedService, *, owner: str | None, live: tuple[LiveObject, ...] | None
    ) -> list[DryRun]:
        key, found = rendered.key, Live(self._client, self.map)
        if live is None:
            found.load([key], claims=None)
            live = found.owned(key, owner)
        else:
            found.fetch(key, (each.name for each in live))
        known = found.objects(key)
        dry_runs = [
            dry_run_object(self._client, each, known.get(_name(each)), shared=shared) for each, shared in _all(rendered)
        ]
        return [*dry_runs, *_deletions(rendered, live, known)]

    def _of_plan(self, subject: Subject, plan: Rendering, tried: list[DryRun], live: Live) -> ServicePreview:
        if plan.desired is None or plan.rendered is None:
            return ServicePreview(subject.key, notes=(*subject.notes, *plan.notes), problem=plan.problem)
        if not tried:
            tried = [DryRun(ObjectChange("same", each.kind, each.name)) for each, _ in _all(plan.rendered)]
        known, notes = live.objects(subject.key), [*subject.notes, *plan.notes]
        if not subject.edited:
            applied = comparing.applied(plan.rendered, known)
            tried = [_unless_reported(each, applied, notes) for each in tried]
        gone = _deletions(plan.rendered, live.owned(subject.key, subject.cr["metadata"].get("uid")), known)
        return self._preview(
            plan.desired,
            plan.rendered,
            [*tried, *gone],
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
        notes: tuple[str, ...],
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
    """All objects in the order in which they are made, and whether each is shared."""
    return [*((each, True) for each in rendered.shared), *((each, False) for each in rendered.objects)]


def _untried(plan: Rendering, live: Mapping[ObjectName, Json]) -> list[tuple[RenderedObject, bool]]:
    """The objects that must be tried out: none where everything stands as it was rendered."""
    if plan.rendered is None or comparing.is_settled(plan.rendered, live):
        return []
    return _all(plan.rendered)


def _unless_reported(tried: DryRun, applied: Iterable[RenderedObject], notes: list[str]) -> DryRun:
    """Take back what the loop would do about drift of what was applied, where drift is only reported."""
    change = tried.change
    each = next((each for each in applied if _name(each) == ObjectName(change.kind, change.name)), None)
    if change.op == "same" or each is None or each.on_drift != "report":
        return tried
    what = "was deleted" if change.op == "create" else f"was changed: {', '.join(change.fields)}"
    notes.append(f"drift, which is reported and not repaired: {change.kind} {change.name} {what}")
    return DryRun(ObjectChange("same", change.kind, change.name), tried.live, tried.live)


def _deletions(
    rendered: RenderedService, owned: Iterable[LiveObject], known: Mapping[ObjectName, Json]
) -> list[DryRun]:
    wanted = {_name(each) for each in rendered.objects}
    return [
        DryRun(comparing.deleted(each.name, each.uid), known.get(each.name))
        for each in sorted(owned, key=lambda each: each.name)
        if each.name not in wanted
    ]
