"""Records each version of a ModelRouter, ModelPool and LoRAAdapter that the loop sees. Called before it is used.

These resources get no objects, so no run of the engine ends a version. A version counts as applied if its spec is valid
and it was accepted: no mandatory policy forbids it, and no mode holds it back.
"""

from __future__ import annotations

import threading
from typing import NamedTuple

from automation.approval.resource_versions import Judged
from automation.engine.differences import differences
from automation.engine.outcomes import describe_changes
from automation.engine.port import Change, Op
from automation.history import revision
from automation.history.recorder import RevisionRecorder
from components.rendered import fingerprint_of
from kubeapi.json_types import Json
from program.desired.errors import SpecInvalid
from program.desired.keys import ServiceKey
from program.dialects.llmkube.parse.referrers import check_referrer
from program.dialects.registry import key_of


class _Seen(NamedTuple):
    key: ServiceKey
    uid: str
    data: Json
    digest: str
    error: str


class ResourceHistory:
    """Remembers the last version of each resource. Thread-safe."""

    def __init__(self, recorder: RevisionRecorder) -> None:
        self._recorder = recorder
        self._lock = threading.Lock()
        self._seen: dict[tuple[str, str, str], _Seen] = {}

    def note(self, cr: Json, judged: Judged) -> None:
        """Record the version of a resource if it is new, or if its result changed. `judged`: whether it is accepted."""
        metadata = cr["metadata"]
        name = (str(cr["kind"]), str(metadata["namespace"]), str(metadata["name"]))
        error = _error(cr, judged)
        data = revision.data_of(cr, ())
        now = _Seen(key_of(cr), str(metadata["uid"]), data, fingerprint_of(data), error)
        with self._lock:
            before = self._seen.get(name)
            if before is not None and before.uid == now.uid and (before.digest, before.error) == (now.digest, error):
                return
            self._seen[name] = now
        is_new = before is None or before.uid != now.uid
        details = differences(before.data, data) if before is not None and not is_new else ()
        op: Op = "create" if metadata.get("generation", 1) == 1 and is_new else "update"
        changes = describe_changes((Change("", name[0], name[2], op, details=details),))
        self._recorder.record_resource(cr, changes=changes, error=error)

    def drop(self, kind: str, namespace: str, name: str) -> None:
        """Drop the records of a deleted resource. The garbage collector deletes its revisions."""
        with self._lock:
            known = self._seen.pop((kind, namespace, name), None)
        if known is not None:
            self._recorder.drop_service(known.key)


def _error(cr: Json, judged: Judged) -> str:
    try:
        check_referrer(cr)
    except SpecInvalid as error:
        return str(error)
    problem = judged.denied or judged.holds
    return problem.message if problem is not None else ""
