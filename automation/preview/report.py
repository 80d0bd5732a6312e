"""Reports a preview: as text for a terminal, as Markdown for a pull request, as JSON, as phrases for a status. Pure.

Called by `herdsman preview`, by the loop for services in mode Preview, by rollback and adoption.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from typing import TYPE_CHECKING, Final

from automation.console.terminal_text import cleaned
from automation.preview.changes import Download, ObjectChange, Preview, ResourcePreview, ServicePreview
from kubeapi.json_types import Json
from program.dialects.llmkube.status.model import human_size
from program.dialects.registry import LLMKUBE, kind_text

if TYPE_CHECKING:
    from automation.engine.port import Op
    from components.policies.policy import Violation
    from program.desired.facts import Problem
    from program.desired.keys import ServiceKey


MARKS: Final[dict[Op, str]] = {"create": "+", "update": "~", "replace": "-+", "delete": "-", "same": " "}
_WORDS: Final[dict[Op, str]] = {
    "create": "to create",
    "update": "to change",
    "replace": "to replace",
    "delete": "to delete",
}
_COLOURS: Final = {"+": "32", "~": "33", "-+": "35", "-": "31", "!": "31", "bold": "1", "dim": "2", " ": ""}
_DIFF_MARKS: Final[dict[Op, str]] = {"create": "+", "update": "!", "replace": "!", "delete": "-", "same": " "}
"""Marks by which GitHub and GitLab colour a block of the language diff."""
LONGEST_MARKDOWN = 60_000
"""Characters. GitHub takes 65,536 for a comment, GitLab a million."""
_MOST_FIELDS = 40


# --- one service ------------------------------------------------------------------------------------------------------


def summary(service: ServicePreview) -> str:
    """Return one line about the changes of a service."""
    if service.problem is not None:
        where = f"{service.problem.field}: " if service.problem.field else ""
        return f"cannot be applied: {where}{service.problem.message}"
    parts = [counts_text(service.changed) or "nothing changes"]
    mandatory = [each for each in service.violations if each.mandatory]
    refused = [each for each in service.objects if each.refused]
    if mandatory:
        parts.append("not allowed by policy " + ", ".join(sorted({f"`{each.policy}`" for each in mandatory})))
    if refused:
        parts.append(f"{len(refused)} refused")
    if service.restarts:
        parts.append("restarts " + ", ".join(service.restarts))
    if service.stops:
        parts.append("stops " + ", ".join(service.stops))
    if service.downloads:
        parts.append("downloads " + ", ".join(map(_size_or_source, service.downloads)))
    return "; ".join(parts)


def name_text(key: ServiceKey) -> str:
    """Return a service's name, with its kind where the dialect is not LLMKube's: a name is unique within its kind."""
    kind = "" if key.dialect == LLMKUBE else f"{kind_text(key.dialect)} "
    return f"{kind}{key.namespace}/{key.name}"


def counts_text(changes: Iterable[ObjectChange]) -> str:
    """Count changes by their operation: `1 to create, 2 to change`; empty when there are none."""
    return _ops_text(each.op for each in changes)


def _ops_text(ops: Iterable[Op]) -> str:
    counted = Counter(ops)
    return ", ".join(f"{counted[op]} {words}" for op, words in _WORDS.items() if counted[op])


def phrases(service: ServicePreview) -> tuple[str, ...]:
    """Return one phrase for each object that changes."""
    found = []
    for each in service.changed:
        phrase = f"{each.op} {each.kind} {each.name}"
        if each.fields:
            phrase += ": " + ", ".join(each.fields)
        if each.refused:
            phrase += f" (refused: {each.refused})"
        found.append(phrase)
    return tuple(found)


def download_text(download: Download) -> str:
    """Describe the download: source, destination and size."""
    size = f"{human_size(download.size_bytes)} " if download.size_bytes else ""
    return f"{size}from {download.source} to {download.where}"


def _size_or_source(download: Download) -> str:
    return human_size(download.size_bytes) if download.size_bytes else download.source


# --- text -------------------------------------------------------------------------------------------------------------


def as_terminal_text(preview: Preview, *, colour: bool) -> str:
    """Return a preview as text for a terminal; text from the cluster is cleaned before it is coloured."""
    preview, paint = cleaned(preview), _Paint(on=colour)
    lines = [f"{paint('!', 'Error:')} {error}" for error in preview.errors]
    lines += [f"{paint('dim', 'Note:')} {note}" for note in preview.notes]
    for service in _services_to_report(preview):
        if lines:
            lines.append("")
        lines += _service_lines(service, paint)
    for resource in preview.resources:
        lines += ["", *_resource_lines(resource, paint)] if lines else _resource_lines(resource, paint)
    if len(preview.services) + len(preview.resources) != 1:
        lines += ["", paint("bold", headline(preview))] if lines else [paint("bold", headline(preview))]
    return "\n".join(lines)


def headline(preview: Preview) -> str:
    """Return the numbers of services and resources by the kind of their changes."""
    ops = [each.op for service in preview.services for each in service.changed]
    total = _ops_text([*ops, *(each.op for each in preview.resources if each.changed)])
    parts = [*_numbers("service", preview.services), *_numbers("resource", preview.resources)]
    text = ", ".join(parts) or "No services to preview"
    return text + (f" ({total})" if total else "")


def _numbers(noun: str, previews: Sequence[ServicePreview | ResourcePreview]) -> Iterator[str]:
    refused = sum(1 for each in previews if each.refused)
    changed = sum(1 for each in previews if each.changed and not each.refused)
    words = ("would change", "would be refused", "would not change")
    for count, said in zip((changed, refused, len(previews) - changed - refused), words, strict=True):
        if count:
            yield f"{count} {noun}{'' if count == 1 else 's'} {said}"


def _services_to_report(preview: Preview) -> Iterator[ServicePreview]:
    for service in preview.services:
        if service.changed or service.refused or service.violations or len(preview.services) == 1:
            yield service


class _Paint:
    """Colours for a terminal; none without a terminal."""

    def __init__(self, *, on: bool) -> None:
        self._on = on

    def __call__(self, colour: str, text: str) -> str:
        code = _COLOURS[colour]
        return f"\x1b[{code}m{text}\x1b[0m" if self._on and code else text


def _service_lines(service: ServicePreview, paint: _Paint) -> Iterator[str]:
    name = name_text(service.key)
    count = counts_text(service.changed) or ("" if service.problem else "nothing changes")
    yield paint("bold", name) + (f"  {paint('dim', count)}" if count else "")
    if service.problem is not None:
        yield f"  {paint('!', '!')} {_problem_text(service.problem)}"
    for each in service.changed:
        mark = MARKS[each.op]
        yield f"  {paint(mark, f'{mark:<2}')} {each.kind} {each.name}" + (" (shared)" if each.shared else "")
        for field in _limited(each.fields):
            yield f"       {field}"
        for line in each.refused.splitlines():
            yield f"     {paint('!', '!')} {line}"
    yield from _last_lines(service, paint)


def _resource_lines(resource: ResourcePreview, paint: _Paint) -> Iterator[str]:
    name = f"{resource.kind} {resource.namespace}/{resource.name}"
    count = _ops_text([resource.op]) or ("" if resource.problem else "nothing changes")
    yield paint("bold", name) + (f"  {paint('dim', count)}" if count else "")
    if resource.problem is not None:
        yield f"  {paint('!', '!')} {_problem_text(resource.problem)}"
    if resource.changed:
        yield f"  {paint(MARKS[resource.op], f'{MARKS[resource.op]:<2}')} {resource.kind} {resource.name}"
    for field in _limited(resource.fields):
        yield f"       {field}"
    yield from _last_lines(resource, paint)


def _last_lines(preview: ServicePreview | ResourcePreview, paint: _Paint) -> Iterator[str]:
    for violation in preview.violations:
        yield f"  {paint('!' if violation.mandatory else '~', '!' if violation.mandatory else '?')}  {violation}"
    for word, texts in _consequences(preview):
        for text in texts:
            yield f"  {paint('dim', f'{word:<10}')} {text}"
    if preview.digest:
        yield f"  {paint('dim', 'digest    ')} {preview.digest}"


def _problem_text(problem: Problem) -> str:
    return f"{problem.field}: {problem.message}" if problem.field else problem.message


def _consequences(preview: ServicePreview | ResourcePreview) -> tuple[tuple[str, tuple[str, ...]], ...]:
    if isinstance(preview, ResourcePreview):
        return ("effect", preview.effects), ("warning", preview.warnings), ("note", preview.notes)
    return (
        ("restarts", preview.restarts),
        ("stops", preview.stops),
        ("downloads", tuple(map(download_text, preview.downloads))),
        ("note", preview.notes),
    )


def _limited(fields: tuple[str, ...]) -> tuple[str, ...]:
    if len(fields) <= _MOST_FIELDS:
        return fields
    return (*fields[:_MOST_FIELDS], f"and {len(fields) - _MOST_FIELDS} more")


# --- Markdown ---------------------------------------------------------------------------------------------------------


def markdown(preview: Preview) -> str:
    """Write a preview as a comment on a pull request: counts in a table, the changes of each service folded below."""
    lines = [f"### Herdsman preview: {headline(preview)}", ""]
    changes = Counter(each.op for service in preview.services for each in service.changed)
    changes.update(each.op for each in preview.resources)
    restarted = sum(len(service.restarts) for service in preview.services)
    fetched = len({download for service in preview.services for download in service.downloads})
    lines += ["| create | change | replace | delete | restarts | downloads |", "|---:|---:|---:|---:|---:|---:|"]
    lines.append(f"| {' | '.join(str(changes[op]) for op in _WORDS)} | {restarted} | {fetched} |")
    lines += ["", *(f"- :x: {_escaped(error)}" for error in preview.errors)]
    lines += [f"- {_escaped(note)}" for note in preview.notes]
    text = "\n".join(lines).rstrip() + "\n"
    left = [(name_text(each.key), _details(each)) for each in _services_to_report(preview)]
    left += [(f"{each.kind} {each.namespace}/{each.name}", _resource_details(each)) for each in preview.resources]
    while left:
        block = left[0][1]
        if len(text) + len(block) > LONGEST_MARKDOWN:
            named = ", ".join(f"`{name}`" for name, _ in left[:50])
            rest = f" and {len(left) - 50} more" if len(left) > 50 else ""
            return f"{text}\nToo long to show: {named}{rest}. `herdsman preview` shows them.\n"
        text += block
        left.pop(0)
    return text


def _details(service: ServicePreview) -> str:
    body = []
    for each in service.changed:
        mark = _DIFF_MARKS[each.op]
        body.append(f"{mark} {each.kind} {each.name}" + (" (replaced)" if each.op == "replace" else ""))
        body += [f"{mark}     {field}" for field in _limited(each.fields)]
        body += [f"-     refused: {line}" for line in each.refused.splitlines()]
    title = f"<b>{_escaped(name_text(service.key))}</b>: {_escaped(summary(service))}"
    return _folded(title, body, service)


def _resource_details(resource: ResourcePreview) -> str:
    mark = _DIFF_MARKS[resource.op]
    body = [f"{mark} {resource.kind} {resource.name}"] if resource.changed else []
    body += [f"{mark}     {field}" for field in _limited(resource.fields)]
    said = _ops_text([resource.op]) or "nothing changes"
    if resource.problem is not None:
        said = f"cannot be applied: {_problem_text(resource.problem)}"
    title = f"<b>{_escaped(f'{resource.kind} {resource.namespace}/{resource.name}')}</b>: {_escaped(said)}"
    return _folded(title, body, resource)


def _folded(title: str, body: Sequence[str], preview: ServicePreview | ResourcePreview) -> str:
    """Return a section that GitHub and GitLab fold: a diff, and below it violations and consequences."""
    fence = "`" * (1 + max([2, *(len(run) for line in body for run in re.findall(r"`+", line))]))
    is_open, sign = (" open", ":x: ") if preview.refused else ("", "")
    lines = ["", f"<details{is_open}><summary>{sign}{title}</summary>", ""]
    lines += [f"{fence}diff", *body, fence, ""] if body else []
    lines += [f"- {':x:' if each.mandatory else ':warning:'} {_escaped(str(each))}" for each in preview.violations]
    lines += [f"- **{word}** {_escaped(text)}" for word, texts in _consequences(preview) for text in texts]
    lines += [f"- **digest** `{preview.digest}`"] if preview.digest else []
    return "\n".join([*lines, "", "</details>", ""])


def _escaped(text: str) -> str:
    """Keep text from being read as HTML, a mention or a table."""
    text = text.replace("&", "&amp;").replace("<", "&lt;").replace(">", "&gt;").replace("\n", " ")
    return re.sub(r"([*_|@\[\]\\])", r"\\\1", text)


# --- JSON -------------------------------------------------------------------------------------------------------------


def as_json(preview: Preview) -> Json:
    """Return a preview for scripts; docs/how-to/preview.md describes the shape, which only grows."""
    counted = Counter(each.op for service in preview.services for each in service.objects)
    counted.update(each.op for each in preview.resources)
    return {
        "changed": preview.changed,
        "refused": preview.refused,
        "errors": list(preview.errors),
        "notes": list(preview.notes),
        "summary": {
            "services": len(preview.services),
            "resources": len(preview.resources),
            "changed": sum(1 for each in preview.parts if each.changed),
            "refused": sum(1 for each in preview.parts if each.refused),
            **{op: counted[op] for op in MARKS},
        },
        "services": [service_json(each) for each in preview.services],
        "resources": [_resource_json(each) for each in preview.resources],
    }


def _resource_json(resource: ResourcePreview) -> Json:
    problem = resource.problem
    return {
        "kind": resource.kind,
        "namespace": resource.namespace,
        "name": resource.name,
        "op": resource.op,
        "changed": resource.changed,
        "refused": resource.refused,
        "digest": resource.digest,
        "fields": list(resource.fields),
        "effects": list(resource.effects),
        "warnings": list(resource.warnings),
        "notes": list(resource.notes),
        "violations": [violation_json(each) for each in resource.violations],
        "problem": _problem_json(problem),
    }


def _problem_json(problem: Problem | None) -> Json | None:
    return {"reason": problem.reason, "field": problem.field, "message": problem.message} if problem else None


def violation_json(violation: Violation) -> Json:
    """Return a violation for scripts."""
    return {
        "policy": violation.policy,
        "rule": violation.rule,
        "field": violation.field,
        "value": violation.value,
        "fix": violation.fix,
        "mandatory": violation.mandatory,
    }


def service_json(service: ServicePreview) -> Json:
    """Return the preview of one service for scripts."""
    problem = service.problem
    dialect = {"dialect": service.key.dialect} if service.key.dialect != LLMKUBE else {}
    return {
        **dialect,
        "namespace": service.key.namespace,
        "name": service.key.name,
        "changed": bool(service.changed),
        "refused": service.refused,
        "digest": service.digest,
        "summary": summary(service),
        "problem": _problem_json(problem),
        "objects": [
            {
                "op": each.op,
                "kind": each.kind,
                "name": each.name,
                "fields": list(each.fields),
                "refused": each.refused,
                "shared": each.shared,
                "digest": each.digest,
            }
            for each in service.objects
        ],
        "restarts": list(service.restarts),
        "stops": list(service.stops),
        "downloads": [
            {"source": each.source, "where": each.where, "sizeBytes": each.size_bytes} for each in service.downloads
        ],
        "violations": [violation_json(each) for each in service.violations],
        "notes": list(service.notes),
    }
