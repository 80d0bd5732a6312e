"""Whether a host allows what a service asks for, and which field of the custom resource asks for it. Pure.

The loop calls this when it places a service, `herdsman render` and the static fleet when they resolve one. The rule is
`program.runtimes.host_rules`.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from components.host_program import host_program
from kubeapi.json_types import Json
from program.desired.engines import Generic
from program.desired.errors import SpecInvalid
from program.desired.service import DesiredService, Written
from program.runtimes.host_rules import Allowance, Need, not_allowed, program_needs

NOT_ALLOWED = "NotAllowedOnHost"
"""Reason of the condition."""
_SETTINGS = {
    "--paged-ssd-cache-dir": "spec.pagedSSDCacheDir",
    "-md": "spec.speculativeDecoding",
}
"""Fields of an InferenceService that set a path, by the flag that they become."""


def host_needs(desired: DesiredService) -> tuple[Need, ...]:
    """List what a service asks of its host beyond what every host allows. Raises SpecInvalid as `host_program` does."""
    program = host_program(desired)
    values = {entry["name"]: "" for entry in desired.pod.env if not _is_secret(entry)}
    secrets = [entry["name"] for entry in desired.pod.env if _is_secret(entry)]
    return program_needs(program.runtime, program.argv, values, program.daemon_model, secrets=secrets)


def check_allowed(
    desired: DesiredService,
    needs: Sequence[Need],
    host: str,
    allowance: Allowance,
    *,
    labels: Mapping[str, str] | None = None,
) -> None:
    """Raise SpecInvalid with the field where `host` does not allow a service. `labels` are its namespace's."""
    namespace = desired.key.namespace
    if not allowance.admits(namespace, labels or {}):
        why = (
            f"host `{host}` does not allow namespace `{namespace}`; its owner can, by spec.allow.namespaces or "
            "spec.allow.namespaceSelector of the Host"
        )
        raise SpecInvalid(field="metadata.namespace", reason=NOT_ALLOWED, why=why)
    need = allowance.refused(needs)
    if need is not None:
        raise SpecInvalid(field=field_of(desired, need), reason=NOT_ALLOWED, why=f"host `{host}` {not_allowed(need)}")


def check_any_allowed(desired: DesiredService, needs: Sequence[Need], allowances: Sequence[Allowance]) -> None:
    """Raise SpecInvalid with the field where none of these hosts grants all that a service asks for."""
    lacking = [need for allowance in allowances if (need := allowance.refused(needs)) is not None]
    if allowances and len(lacking) == len(allowances):
        need = lacking[0]
        why = f"no host allows {need}; the owner of one can, by {need.granted_by} of its Host"
        raise SpecInvalid(field=field_of(desired, need), reason=NOT_ALLOWED, why=why)


def field_of(desired: DesiredService, need: Need) -> str:
    """Name the field that asks for something."""
    placement = desired.host_placement
    written = (placement.written if placement is not None else None) or _of_llmkube(desired)
    match need.kind:
        case "runtime":
            return "spec.runtime"
        case "command":
            return "spec.command"
        case "registry":
            return written.model_field
        case "variable":
            return _at(written.variables_field, _index(written.variables, need.name))
        case _:
            index = _index([_name(word) for word in written.arguments], _name(need.flag or need.name))
            if index is None:
                index = _index(written.arguments, need.name)
            if index is None and need.flag in _SETTINGS and desired.key.dialect == "llmkube":
                return _SETTINGS[need.flag]
            return _at(written.arguments_field, index)


def _of_llmkube(desired: DesiredService) -> Written:
    engine = desired.engine
    generic = isinstance(engine, Generic)
    arguments = engine.args if isinstance(engine, Generic) else getattr(engine, "extra_args", ())
    return Written(
        arguments=tuple(arguments),
        arguments_field="spec.args" if generic else "spec.extraArgs",
        variables=tuple(str(entry["name"]) for entry in desired.pod.env),
        variables_field="spec.env",
        model_field="spec.modelRef",
    )


def _is_secret(variable: Json) -> bool:
    return "valueFrom" in variable


def _name(word: str) -> str:
    name = word.partition("=")[0]
    return f"--{name[2:].replace('_', '-')}" if name.startswith("--") else name


def _index(words: Sequence[str], wanted: str) -> int | None:
    return next((index for index, word in enumerate(words) if word == wanted), None)


def _at(field: str, index: int | None) -> str:
    return field if index is None else f"{field}[{index}]"
