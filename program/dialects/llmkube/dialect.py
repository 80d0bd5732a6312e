"""LLMKube's InferenceService as a dialect. The loop, previews and the CLI get it from `registry`."""

from __future__ import annotations

from datetime import datetime

from kubeapi import kinds
from kubeapi.json_types import Json
from kubeapi.kinds import Kind
from program.desired.errors import ModelNotReady, NotYet, SpecInvalid
from program.desired.facts import ServiceFacts
from program.desired.model import DesiredModel, SourceKind
from program.desired.service import DesiredService
from program.dialects.dialect import Dialect, Lookup, Parsed
from program.dialects.llmkube.parse.adapter import ENGINES, files_of, runtime_of
from program.dialects.llmkube.parse.model import model_of
from program.dialects.llmkube.parse.service import draft_reference, parse_service, unsupported_fields
from program.dialects.llmkube.status.model import failure_of, known_status
from program.dialects.llmkube.status.service import service_status
from program.dialects.status.conditions import Reason
from program.dialects.status.model_wait import model_wait_s

DRAFT_RECHECK_S = 300.0
"""Seconds until a service checks again a draft Model that is not Ready. A change of the Model enqueues it earlier."""


class LlmkubeDialect:
    """Parses InferenceServices and the Models that they name, and writes the status of InferenceServices."""

    name: str = "llmkube"
    kind: Kind = kinds.INFERENCE_SERVICES
    peer_finalizers: tuple[str, ...] = ()

    def parse(self, cr: Json, look: Lookup) -> Parsed:
        """Parse a service with its Model and its draft Model.

        Raises SpecInvalid with the field, ModelNotReady if the Model is missing or not Ready, NotYet for the draft.
        """
        model_cr = _model(cr, look)
        if model_cr is None or (look.reads_model_status and not model_is_ready(model_cr)):
            raise ModelNotReady(model=_model_name(cr), found=model_cr is not None)
        desired = _with_adapters(parse_service(cr, model_of(model_cr), draft=_draft(cr, look)), cr, look)
        return Parsed(desired, unsupported_fields(cr, desired), _node_paths(desired))

    def status(
        self, cr: Json, desired: DesiredService | None, facts: ServiceFacts, look: Lookup, *, now: datetime
    ) -> Json:
        """Return the complete status, or the dict `cr["status"]` itself if nothing has changed."""
        model_cr = _model(cr, look)
        of_model = {
            "model_found": model_cr is not None or model_wait_s(cr, now=now) > 0,
            "model_ready": model_cr is not None and (model_cr.get("status") or {}).get("phase") == "Ready",
            "model_failed": failure_of(model_cr) if model_cr is not None else "",
        }
        return service_status(cr, desired, facts.model_copy(update=of_model), now=now)

    def labels(self, cr: Json) -> dict[str, str]:  # noqa: ARG002 - the protocol's
        """Return no labels: LLMKube has no webhook."""
        return {}


def model_is_ready(model_cr: Json) -> bool:
    """Return whether a Model's status is Ready for the source that its spec names now.

    After an edit of the source, the status still describes the earlier source. A service rendered at that moment would
    name a file that is not known yet, and would restart again with the next status, each time with a download.
    """
    return bool(known_status(model_cr).get("phase") == "Ready")


def _model_name(cr: Json) -> str:
    spec = cr.get("spec")
    return str(spec.get("modelRef") or "") if isinstance(spec, dict) else ""


def _model(cr: Json, look: Lookup) -> Json | None:
    return look(kinds.MODELS, _namespace(cr), _model_name(cr))


def _namespace(cr: Json) -> str:
    return str(cr["metadata"].get("namespace") or "default")


def _draft(cr: Json, look: Lookup) -> DesiredModel | None:
    """Resolve the draft Model. A draft that is not Ready holds the service back, as the main Model does.

    The parser reports a missing draft, because it knows whether the engine uses it.
    """
    name = draft_reference(cr)
    found = look(kinds.MODELS, _namespace(cr), name) if name and name != _model_name(cr) else None
    if found is None:
        return None
    if look.reads_model_status and not model_is_ready(found):
        if failed := failure_of(found):
            why = f"draft Model `{name}` is not Ready, it failed: {failed}"
            raise SpecInvalid(field="", reason=Reason.MODEL_NOT_READY, why=why)
        why = f"draft Model `{name}` is not Ready yet"
        raise NotYet(reason=Reason.MODEL_NOT_READY, why=why, retry_after_s=DRAFT_RECHECK_S)
    return model_of(found)


def _with_adapters(desired: DesiredService, cr: Json, look: Lookup) -> DesiredService:
    """Add the LoRAAdapters that are part of the service."""
    if runtime_of(cr) not in ENGINES:
        return desired
    namespace = _namespace(cr)
    crs = look.listed(kinds.LORA_ADAPTERS, namespace)
    found = files_of(cr, crs, on_host=desired.host_placement is not None) if crs else ()
    for each in found:
        look(kinds.LORA_ADAPTERS, namespace, each.resource)  # so that it counts as an object the service refers to
    return desired.model_copy(update={"adapters": found}) if found else desired


def _node_paths(service: DesiredService) -> tuple[tuple[str, str], ...]:
    """List the files of nodes that pods read. A host has a separate rule (`agent run --allowed-host-path-roots`)."""
    if service.host_placement is not None:
        return ()
    models = [each for each in (service.model, service.draft) if each is not None]
    files = [each for each in models if each.source.kind is SourceKind.FILE]
    return tuple((f"Model/{each.name} spec.source", each.source.path) for each in files)


DIALECT: Dialect = LlmkubeDialect()
