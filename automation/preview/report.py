"""Reports a preview: as text for a terminal, as Markdown for a pull request, as JSON, as phrases for a status. Pure.

Called by `herdsman preview`, by the loop for services in mode Preview, by rollback and adoption.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable, Iterator
from typing import TYPE_CHECKING, Final

from automation.console.terminal_text import cleaned
from automation.preview.changes import Download, ObjectChange, Preview, ServicePreview
from kubeapi.json_types import Json
from program.dialects.llmkube.status.model import human_size
from program.dialects.registry import LLMKUBE, kind_text

if TYPE_CHECKING:
    from automation.engine.port import Op
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
    counted = Counter(each.op for each in changes)
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
    if len(preview.services) > 1 or not preview.services:
        lines += ["", paint("bold", headline(preview))] if lines else [paint("bold", headline(preview))]
    return "\n".join(lines)


def headline(preview: Preview) -> str:
    """Return the numbers of services by the kind of their changes."""
    changed = [each for each in preview.services if each.changed and not each.refused]
    refused = [each for each in preview.services if each.refused]
    same = len(preview.services) - len(changed) - len(refused)
    total = counts_text(each for service in preview.services for each in service.changed)
    parts = [f"{_services(len(changed))} would change"] if changed else []
    parts += [f"{_services(len(refused))} would be refused"] if refused else []
    parts += [f"{_services(same)} would not change"] if same else []
    text = ", ".join(parts) or "No services to preview"
    return text + (f" ({total})" if total else "")


def _services(count: int) -> str:
    return f"{count} service" + ("" if count == 1 else "s")


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
        where = f"{service.problem.field}: " if service.problem.field else ""
        yield f"  {paint('!', '!')} {where}{service.problem.message}"
    for each in service.changed:
        mark = MARKS[each.op]
        yield f"  {paint(mark, f'{mark:<2}')} {each.kind} {each.name}" + (" (shared)" if each.shared else "")
        for field in _limited(each.fields):
            yield f"       {field}"
        for line in each.refused.splitlines():
            yield f"     {paint('!', '!')} {line}"
    for violation in service.violations:
        yield f"  {paint('!' if violation.mandatory else '~', '!' if violation.mandatory else '?')}  {violation}"
    for word, texts in _consequences(service):
        for text in texts:
            yield f"  {paint('dim', f'{word:<10}')} {text}"
    if service.digest:
        yield f"  {paint('dim', 'digest    ')} {service.digest}"


def _consequences(service: ServicePreview) -> tuple[tuple[str, tuple[str, ...]], ...]:
    return (
        ("restarts", service.restarts),
        ("stops", service.stops),
        ("downloads", tuple(map(download_text, service.downloads))),
        ("note", service.notes),
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
    restarted = sum(len(service.restarts) for service in preview.services)
    fetched = len({download for service in preview.services for download in service.downloads})
    lines += ["| create | change | replace | delete | restarts | downloads |", "|---:|---:|---:|---:|---:|---:|"]
    lines.append(f"| {' | '.join(str(changes[op]) for op in _WORDS)} | {restarted} | {fetched} |")
    lines += ["", *(f"- :x: {_escaped(error)}" for error in preview.errors)]
    lines += [f"- {_escaped(note)}" for note in preview.notes]
    text = "\n".join(lines).rstrip() + "\n"
    left = list(_services_to_report(preview))
    while left:
        block = _details(left[0])
        if len(text) + len(block) > LONGEST_MARKDOWN:
            named = ", ".join(f"`{name_text(each.key)}`" for each in left[:50])
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
    fence = "`" * (1 + max([2, *(len(run) for line in body for run in re.findall(r"`+", line))]))
    is_open = " open" if service.refused else ""
    sign = ":x: " if service.refused else ""
    title = f"{sign}<b>{_escaped(name_text(service.key))}</b>: {_escaped(summary(service))}"
    lines = ["", f"<details{is_open}><summary>{title}</summary>", ""]
    lines += [f"{fence}diff", *body, fence, ""] if body else []
    lines += [f"- {':x:' if each.mandatory else ':warning:'} {_escaped(str(each))}" for each in service.violations]
    lines += [f"- **{word}** {_escaped(text)}" for word, texts in _consequences(service) for text in texts]
    lines += [f"- **digest** `{service.digest}`"] if service.digest else []
    return "\n".join([*lines, "", "</details>", ""])


def _escaped(text: str) -> str:
    """Keep text from being read as HTML, a mention or a table."""
    text = text.replace("&", "&amp;").replace("<", "&lt;").replace(">", "&gt;").replace("\n", " ")
    return re.sub(r"([*_|@\[\]\\])", r"\\\1", text)


# --- JSON -------------------------------------------------------------------------------------------------------------


def as_json(preview: Preview) -> Json:
    """Return a preview for scripts; docs/how-to/preview.md describes the shape, which only grows."""
    counted = Counter(each.op for service in preview.services for each in service.objects)
    return {
        "changed": preview.changed,
        "refused": preview.refused,
        "errors": list(preview.errors),
        "notes": list(preview.notes),
        "summary": {
            "services": len(preview.services),
            "changed": sum(1 for each in preview.services if each.changed),
            "refused": sum(1 for each in preview.services if each.refused),
            **{op: counted[op] for op in MARKS},
        },
        "services": [service_json(each) for each in preview.services],
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
        "problem": {"reason": problem.reason, "field": problem.field, "message": problem.message} if problem else None,
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
        "violations": [
            {
                "policy": each.policy,
                "rule": each.rule,
                "field": each.field,
                "value": each.value,
                "fix": each.fix,
                "mandatory": each.mandatory,
            }
            for each in service.violations
        ],
        "notes": list(service.notes),
    }
