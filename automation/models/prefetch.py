"""Runs the Jobs that fetch models ahead of their services, and reports their progress.

Called by `model_controller` in a Model's pass. A Job is a one-off action and not a resource of a stack (docs/adr/0007),
so it is created directly. The module has a separate informer, on Jobs with Herdsman's label. While a Job runs,
`transfers` gets its pods.
"""

from __future__ import annotations

from collections.abc import Callable

import structlog

from automation.models.transfers import CONTAINER, TransferWatch
from components import naming
from components.model_cache import ANNOTATION_WARM, SELECTOR, namespace_claim, prefetch_job, prefetch_name
from components.options import RenderOptions
from kubeapi import kinds
from kubeapi.client import KubeClient
from kubeapi.errors import ApiError, Conflict, NotFound
from kubeapi.informer import Informer
from kubeapi.json_types import Json
from program.desired.facts import PrefetchFacts
from program.desired.keys import Owner
from program.desired.model import DesiredModel
from program.dialects.llmkube.status.model_phase import PREFETCHED, prefetch_problem

log = structlog.get_logger(__name__)

WATCH_S = 5.0
"""The interval at which the pods of a running Job are read; the informer reports changes of the Job itself."""
RETRY_S = 60.0
"""The time to the next try when a Job was refused: by a quota, or in a terminating namespace."""


class Prefetcher:
    """The prefetch Jobs of all Models. Thread-safe; one Model's passes come one at a time.

    `changed(namespace, model)` is called when a Job changed; `requeue(namespace, model, delay_s)` requests a pass.
    """

    def __init__(
        self,
        client: KubeClient,
        *,
        options: RenderOptions,
        namespaces: tuple[str, ...],
        changed: Callable[[str, str], None],
        requeue: Callable[[str, str, float], None],
        transfers: TransferWatch | None = None,
        on_relist: Callable[[kinds.Kind], None] | None = None,
    ) -> None:
        self._client = client
        self._options = options
        self._changed = changed
        self._requeue = requeue
        self._transfers = transfers
        self._causes: dict[str, str] = {}
        self._watched: dict[tuple[str, str], set[str]] = {}
        self.jobs = Informer(
            client,
            kinds.JOBS,
            namespaces=namespaces or None,
            label_selector=SELECTOR,
            transform=trimmed_job,
            on_change=self._job_changed,
            on_relist=on_relist,
        )

    def facts(self, cr: Json, model: DesiredModel, *, status: Json) -> PrefetchFacts | None:
        """Create or delete the Job that the Model requests, and return its progress; None without a request.

        `status` is that of the Model if it is about this source, else empty.
        """
        namespace, job_name = cr["metadata"]["namespace"], prefetch_name(model.name)
        job = self.jobs.get(namespace, job_name)
        if job is not None and job["owner"] != cr["metadata"]["uid"]:
            # The Job belongs to a deleted Model of this name, and the garbage collector will delete it.
            job = None
        if not model.prefetch:
            if job is not None and not job["ended"] and not job["asked_for"]:
                self._delete(namespace, job)
            self._unwatch(namespace, model.name)
            return None
        problem = prefetch_problem(model)
        if problem:
            return PrefetchFacts(job=job_name, state="invalid", message=problem)
        if job is None and _was_prefetched(status):
            return PrefetchFacts(job=job_name, state="done")
        if not status.get("path"):
            # The probe of the source gives the file's name. Before that the path of the download is unknown.
            return PrefetchFacts(job=job_name, state="started", message="Probing the source first")
        owner = Owner(api_version=kinds.MODELS.api_version, kind="Model", name=model.name, uid=cr["metadata"]["uid"])
        if not self.jobs.has_synced:
            # At a start, or where an older installation may not list Jobs.
            self._requeue(namespace, model.name, WATCH_S)
            return PrefetchFacts(job=job_name, state="started", message="Searching the Job of an earlier start")
        wanted = prefetch_job(model, namespace, owner, self._options)
        if job is not None and job["hash"] != wanted["metadata"]["annotations"][naming.ANNOTATION_APPLIED_HASH]:
            self._delete(namespace, job)
            return PrefetchFacts(job=job_name, state="started", message="Deleting the Job for an earlier source")
        if job is None:
            return self._make(namespace, model, wanted)
        return self._of_job(namespace, model.name, job)

    # --- acting -------------------------------------------------------------------------------------------------------

    def _make(self, namespace: str, model: DesiredModel, job: Json) -> PrefetchFacts:
        name = job["metadata"]["name"]
        try:
            try:
                self._client.get(kinds.CLAIMS, namespace, naming.CACHE_CLAIM)
            except NotFound:
                claim = namespace_claim(model, namespace, self._options)
                self._client.apply(kinds.CLAIMS, namespace, claim, field_manager=naming.FIELD_MANAGER)
            self._client.apply(kinds.JOBS, namespace, job, field_manager=naming.FIELD_MANAGER)
        except ApiError as error:
            self._requeue(namespace, model.name, RETRY_S)
            return PrefetchFacts(job=name, state="started", message=f"Job `{name}` cannot be created yet: {error}")
        log.info("Started a prefetch", job=name)
        return PrefetchFacts(job=name, state="started")

    def _delete(self, namespace: str, job: Json) -> None:
        try:
            self._client.delete(kinds.JOBS, namespace, job["metadata"]["name"], uid=job["metadata"]["uid"])
        except (NotFound, Conflict):
            return

    # --- judging ------------------------------------------------------------------------------------------------------

    def _of_job(self, namespace: str, model: str, job: Json) -> PrefetchFacts:
        name = job["metadata"]["name"]
        if job["ended"]:
            self._unwatch(namespace, model)
        if job["ended"] == "Complete":
            return PrefetchFacts(job=name, state="done")
        if job["ended"]:
            return PrefetchFacts(job=name, state="failed", message=self._cause(namespace, job))
        if not job["active"]:
            return PrefetchFacts(job=name, state="started")
        waiting = self._watch_pods(namespace, model, name)
        self._requeue(namespace, model, WATCH_S)
        return PrefetchFacts(job=name, state="running", message=waiting)

    def _watch_pods(self, namespace: str, model: str, job: str) -> str:
        """Report the downloading pods of a Job to the transfers; return the cause when none downloads."""
        waiting = ""
        running: set[str] = set()
        for pod in self._pods(namespace, job):
            status = pod.get("status") or {}
            for entry in status.get("initContainerStatuses") or ():
                state = entry.get("state") or {}
                if entry["name"] == CONTAINER and "running" in state:
                    running.add(pod["metadata"]["name"])
                reason = (state.get("waiting") or {}).get("reason", "PodInitializing")
                if reason not in ("PodInitializing", "ContainerCreating"):
                    waiting = f"{reason}: {(state['waiting'].get('message') or '')[:256]}"
            for condition in status.get("conditions") or ():
                if condition["type"] == "PodScheduled" and condition["status"] == "False":
                    waiting = str(condition.get("message") or "")[:256]
        if self._transfers is not None:
            before = self._watched.get((namespace, model), set())
            for name in running | before:
                self._transfers.downloader_changed(namespace, model, name, where=f"job/{job}", running=name in running)
            self._watched[(namespace, model)] = running
        return waiting

    def _unwatch(self, namespace: str, model: str) -> None:
        for pod in self._watched.pop((namespace, model), ()):
            if self._transfers is not None:
                self._transfers.downloader_changed(namespace, model, pod, where="", running=False)

    def _cause(self, namespace: str, job: Json) -> str:
        """Return why a Job failed: the last line of its last container, read once per Job."""
        uid = job["metadata"]["uid"]
        if uid not in self._causes:
            self._causes[uid] = last_words(self._pods(namespace, job["metadata"]["name"])) or job["message"]
        return self._causes[uid]

    def _pods(self, namespace: str, job: str) -> list[Json]:
        selector = f"batch.kubernetes.io/job-name={job}"
        found: list[Json] = self._client.list(kinds.PODS, namespace, label_selector=selector, limit=10)["items"]
        return found

    def _job_changed(self, old: Json | None, new: Json | None) -> None:
        job = new or old
        if job is None:
            return
        if new is None:
            self._causes.pop(job["metadata"]["uid"], None)
        self._changed(job["metadata"]["namespace"], job["model"])


def last_words(pods: list[Json]) -> str:
    """Return the last line of the latest failed container, or its reason when it printed nothing; empty for none."""
    ends = [
        (state["terminated"].get("finishedAt") or "", state["terminated"])
        for pod in pods
        for field in ("initContainerStatuses", "containerStatuses")
        for entry in (pod.get("status") or {}).get(field) or ()
        if (state := entry.get("state") or {}).get("terminated", {}).get("exitCode")
    ]
    if not ends:
        return ""
    end = max(ends, key=lambda entry: entry[0])[1]
    lines = [line for line in (end.get("message") or "").splitlines() if line.strip()]
    return lines[-1][:512] if lines else f"{end.get('reason', 'Error')} (exit status {end['exitCode']})"


def trimmed_job(obj: Json) -> Json:
    """Return the fields of a Job that are cached: its owner, its source, and its status."""
    metadata, status = obj["metadata"], obj.get("status") or {}
    ended: Json = next(
        (c for c in status.get("conditions") or () if c["type"] in ("Complete", "Failed") and c["status"] == "True"),
        {},
    )
    return {
        "metadata": {
            "name": metadata["name"],
            "namespace": metadata["namespace"],
            "uid": metadata["uid"],
            "resourceVersion": metadata["resourceVersion"],
        },
        "model": (metadata.get("labels") or {}).get(naming.LABEL_MODEL, ""),
        "hash": (metadata.get("annotations") or {}).get(naming.ANNOTATION_APPLIED_HASH, ""),
        "owner": next((o["uid"] for o in metadata.get("ownerReferences") or () if o.get("controller")), ""),
        "asked_for": ANNOTATION_WARM in (metadata.get("annotations") or {}),
        "active": bool(status.get("active")),
        "ended": ended.get("type", ""),
        "message": ended.get("message") or "",
    }


def _was_prefetched(status: Json) -> bool:
    return any(c["type"] == "Available" and c["reason"] == PREFETCHED for c in status.get("conditions") or ())
