"""Decides what a process on a host may be started with, and what only the host's owner can allow. Pure.

People who can write a service do not own the host that it runs on, and no container isolates a process there. Therefore
only Herdsman's engines run, with the flags and variables of `host_flags`. Everything else that a plan asks for is a
`Need`. The owner grants needs in the Host's `spec.allow`, which this module reads as an `Allowance`.

The loop checks before it places and renders a service. An agent, and the transport over SSH, check again before a
start, so that the rule also applies to a HostProcess that another client wrote.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Literal

from program.runtimes.host_flags import (
    FLAGS,
    GENERIC_REFUSED,
    GENERIC_REFUSED_PREFIXES,
    SECRET_VARIABLES,
    VARIABLES,
    Flags,
)

if TYPE_CHECKING:  # the contract is slow to import, and a preview of pods needs none of it
    from agent.contract import ProcessPlan

NeedKind = Literal["runtime", "command", "flag", "variable", "path", "registry"]

ANY = "*"
"""In a list of an allowance: everything. At the end of an entry: everything with this prefix."""
_FIELDS: dict[NeedKind, str] = {
    "runtime": "runtimes",
    "command": "commands",
    "flag": "flags",
    "variable": "variables",
    "path": "paths",
    "registry": "registries",
}
_NUMBER = re.compile(r"-?[0-9.]+(e[-+]?[0-9]+)?([,:;+-][-0-9.]*)*", re.ASCII)
_SCALE = re.compile(r":[0-9]{1,3}(\.[0-9]{1,6})?\Z", re.ASCII)
"""The scale behind the path of an adapter."""
_TOKEN_PATH = re.compile(r"\{[A-Za-z0-9_.-]+\}(/[^{}]*)?", re.ASCII)
_MODULE = re.compile(r"[A-Za-z0-9][\w.-]{0,95}", re.ASCII)
_REPOSITORY = re.compile(r"[A-Za-z0-9][\w.-]{0,95}/[A-Za-z0-9][\w.-]{0,95}(:[\w.-]{1,64})?", re.ASCII)
_IN_REPOSITORY = re.compile(r"[A-Za-z0-9][\w.-]*(/[A-Za-z0-9][\w.-]*)*", re.ASCII)
_HUBS = ("hf.co", "huggingface.co", "registry.ollama.ai", "ollama.com")
_DRAFT_KEYS = frozenset(
    {
        *("model", "method", "num_speculative_tokens", "revision", "quantization", "max_model_len"),
        *("prompt_lookup_max", "prompt_lookup_min", "draft_tensor_parallel_size", "disable_by_batch_size"),
    }
)


@dataclass(frozen=True)
class Need:
    """One part of a plan that only the host's owner can grant."""

    kind: NeedKind
    name: str
    """The flag, the variable's name or the path to grant."""
    flag: str = field(default="", compare=False)
    """The flag that a path belongs to; for a need of kind `flag`, the flag itself."""
    at: str = field(default="", compare=False)
    """The field of the plan that asks for it: `argv[7]`, `env.LD_PRELOAD`."""

    def __str__(self) -> str:
        shown = self.name if len(self.name) <= 80 else f"{self.name[:77]}..."
        match self.kind:
            case "path":
                return f"path `{shown}`" + (f" of `{self.flag}`" if self.flag else "")
            case _:
                return f"{self.kind} `{shown}`"

    @property
    def granted_by(self) -> str:
        """The field of a Host that grants it."""
        return f"spec.allow.{_FIELDS[self.kind]}"


@dataclass(frozen=True)
class NamespaceSelector:
    """Selects namespaces by their labels; all conditions must match."""

    labels: tuple[tuple[str, str], ...] = ()
    expressions: tuple[tuple[str, str, tuple[str, ...]], ...] = ()
    """Key, operator (In, NotIn, Exists, DoesNotExist) and values."""

    def matches(self, labels: Mapping[str, str]) -> bool:
        """Match as Kubernetes does. An unknown operator matches nothing."""
        if any(labels.get(key) != value for key, value in self.labels):
            return False
        return all(_holds(labels, *each) for each in self.expressions)


@dataclass(frozen=True)
class Allowance:
    """The permissions that the owner of a host adds to Herdsman's engines and their lists of flags. Hashable."""

    namespaces: tuple[str, ...] = ()
    """Namespaces whose services may run here; if it is empty and there is no selector, all namespaces."""
    selector: NamespaceSelector | None = None
    """Further namespaces, selected by their labels."""
    runtimes: tuple[str, ...] = ()
    commands: tuple[str, ...] = ()
    """Programs that runtime `generic` may start, exactly as written in the command."""
    flags: tuple[str, ...] = ()
    variables: tuple[str, ...] = ()
    paths: tuple[str, ...] = ()
    """Absolute directories. A plan may name the paths below them."""
    registries: tuple[str, ...] = ()
    """Host names of registries that Ollama may pull from."""

    @property
    def restricts_namespaces(self) -> bool:
        """Whether some namespaces are excluded."""
        return bool(self.namespaces) or self.selector is not None

    def admits(self, namespace: str, labels: Mapping[str, str]) -> bool:
        """Return whether services of a namespace may run."""
        if not self.restricts_namespaces or _among(namespace, self.namespaces):
            return True
        return self.selector is not None and self.selector.matches(labels)

    def grants(self, need: Need) -> bool:
        """Return whether one need is granted."""
        match need.kind:
            case "runtime":
                return _among(need.name, self.runtimes)
            case "command":
                return _among(need.name, self.commands)
            case "flag":
                return _among(need.name, self.flags)
            case "variable":
                return _among(need.name, self.variables)
            case "registry":
                return _among(need.name, self.registries)
            case "path":
                return ANY in self.paths or any(_is_below(need.name, root) for root in self.paths)

    def refused(self, needs: Sequence[Need]) -> Need | None:
        """Return the first need that is not granted; None if all are granted."""
        return next((need for need in needs if not self.grants(need)), None)


DEFAULT = Allowance()
"""Herdsman's engines for all namespaces, without further permissions."""
UNRESTRICTED = Allowance(
    runtimes=(ANY,), commands=(ANY,), flags=(ANY,), variables=(ANY,), paths=(ANY,), registries=(ANY,)
)
"""For plans that the owner of the host wrote."""


def allowance_of(said: Mapping[str, Any] | None) -> Allowance:
    """Read a Host's `spec.allow`, which the schema has checked."""
    if not said:
        return DEFAULT
    return Allowance(
        namespaces=_texts(said, "namespaces"),
        selector=_selector(said.get("namespaceSelector")),
        runtimes=_texts(said, "runtimes"),
        commands=_texts(said, "commands"),
        flags=_texts(said, "flags"),
        variables=_texts(said, "variables"),
        paths=_texts(said, "paths"),
        registries=_texts(said, "registries"),
    )


def refusal(plan: ProcessPlan, allowance: Allowance, *, namespace: str, labels: Mapping[str, str] | None = None) -> str:
    """Return why a host with this allowance refuses to start a plan; empty if it may start.

    `labels` are those of the namespace; None if they are unknown, and then a selector with conditions does not match.
    """
    if not allowance.admits(namespace, labels if labels is not None else {}):
        return (
            f"host `{plan.host}` does not allow namespace `{namespace}`; the host's owner can allow it in "
            f"spec.allow.namespaces or spec.allow.namespaceSelector of the Host"
        )
    need = allowance.refused(needs_of(plan))
    return f"host `{plan.host}` {not_allowed(need)}" if need is not None else ""


def not_allowed(need: Need) -> str:
    """Return the end of an error about a host: what it does not allow, and how its owner can allow it."""
    return f"does not allow {need}; the host's owner can allow it in {need.granted_by} of the Host"


def needs_of(plan: ProcessPlan) -> tuple[Need, ...]:
    """List the needs of a plan: everything beyond what every host allows."""
    return program_needs(plan.runtime, plan.argv, plan.env, plan.daemon_model, secrets=_secrets_of(plan))


def program_needs(
    runtime: str,
    argv: Sequence[str],
    env: Iterable[str],
    daemon_model: str | None = None,
    *,
    secrets: Iterable[str] = (),
) -> tuple[Need, ...]:
    """List the needs of a program, its arguments and its variables: everything beyond what every host allows.

    `env` has the names of variables with literal values, `secrets` those with values from Secrets of the service's
    namespace.
    """
    found: list[Need] = []
    known = FLAGS.get(runtime)
    if known is None:
        found.append(Need("runtime", runtime, at="runtime"))
        found.append(Need("command", argv[0] if argv else "", at="argv[0]"))
    elif tuple(argv[: len(known.command)]) != known.command:
        found.append(Need("command", argv[0] if argv else "", at="argv[0]"))
        known = None
    if known is not None:
        found += _of_arguments(argv, known)
    found += (Need("variable", name, at=f"env.{name}") for name in env if not _is_harmless(name, runtime))
    found += (
        Need("variable", name, at=f"secretEnv.{name}")
        for name in secrets
        if name not in SECRET_VARIABLES and not _is_harmless(name, runtime)
    )
    if runtime == "ollama" and daemon_model:
        found += _of_ollama(daemon_model)
    return tuple(dict.fromkeys(found))


def _secrets_of(plan: ProcessPlan) -> Iterable[str]:
    return plan.secret_env or ()


def _is_harmless(variable: str, runtime: str) -> bool:
    known = VARIABLES.get(runtime)
    if known is not None:
        return variable in known
    # macOS and Linux distinguish upper and lower case; some programs do not.
    upper = variable.upper()
    return upper not in GENERIC_REFUSED and not upper.startswith(GENERIC_REFUSED_PREFIXES)


def _of_arguments(argv: Sequence[str], known: Flags) -> Iterator[Need]:
    """Read the arguments flag by flag, as the engine does. An argument that does not match the table is a need."""
    at, models = len(known.command), 0
    while at < len(argv):
        word = argv[at]
        if not word.startswith("-"):
            models += 1
            if models > known.models or not _names_model(word):
                yield Need("path" if models <= known.models else "flag", word, flag=word, at=f"argv[{at}]")
            at += 1
            continue
        name, equals, attached = word.partition("=")
        name = _canonical(name, known)
        given = [attached] if equals else []
        wanted = _arity(name, known)
        end = at + 1
        if wanted is not None:
            least, most = wanted
            while not equals and end < len(argv) and len(given) < most and _is_value(argv[end], len(given) < least):
                given.append(argv[end])
                end += 1
            yield from _of_flag(name, given, known, at, complete=least <= len(given) <= most)
        else:
            yield Need("flag", name, flag=name, at=f"argv[{at}]")
            # These are the values of an unknown flag, so they cannot be checked.
            while not equals and end < len(argv) and not argv[end].startswith("-"):
                end += 1
        at = end


def _of_flag(name: str, given: Sequence[str], known: Flags, at: int, *, complete: bool) -> Iterator[Need]:
    place = f"argv[{at}]"
    value = given[0] if given else ""
    itself = Need("flag", name, flag=name, at=place)
    if not complete or any(each.startswith("-") and not _NUMBER.fullmatch(each) for each in given):
        # Another release may read the value as a flag.
        yield itself
    elif name in known.host_values:
        if value != known.host_values[name]:
            yield itself
    elif name in known.paths:
        if not _is_own_path(name, value):
            yield from (Need("path", each, flag=name, at=place) for each in _paths_in(name, value))
    elif name in known.modules:
        for each in given:
            module, _, path = each.partition("=")
            if not _MODULE.fullmatch(module) or not path:
                yield itself
            elif not _is_own_path(name, path):
                yield Need("path", path, flag=name, at=place)
    elif (
        (name in known.repositories and not _REPOSITORY.fullmatch(value))
        or (name in known.choices and value not in known.choices[name])
        or (name in known.templates and not _is_template(value))
        or (name in known.drafts and not _is_plain_draft(value))
    ):
        yield itself


def _canonical(name: str, known: Flags) -> str:
    """Return the name with dashes: vLLM reads `--max_model_len` as `--max-model-len`."""
    dashed = f"--{name[2:].replace('_', '-')}" if name.startswith("--") else name
    return dashed if known.models and _arity(dashed, known) is not None else name


def _arity(name: str, known: Flags) -> tuple[int, int] | None:
    """Return the smallest and the largest number of values of a flag; None for an unknown flag."""
    if name in known.switches:
        return 0, 0
    if name in known.pairs:
        return 2, 2
    if name in known.lists or name in known.modules:
        return 1, 1 << 10
    one = (
        *(known.values, known.paths, known.repositories, known.host_values),
        *(known.choices, known.templates, known.drafts),
    )
    return (1, 1) if any(name in each for each in one) else None


def _is_value(word: str, needed: bool) -> bool:
    """Return whether a word belongs to the flag before it. A flag that needs a value takes the next word unchecked."""
    return needed or not word.startswith("-") or bool(_NUMBER.fullmatch(word))


def _is_own_path(flag: str, value: str) -> bool:
    """Return whether a path is one of the plan's files, or a file of the repository that the engine fetches."""
    if flag in ("-hff", "--hf-file"):
        return bool(_IN_REPOSITORY.fullmatch(value))
    if flag.endswith("-scaled"):
        value = _SCALE.sub("", value)
    return bool(_TOKEN_PATH.fullmatch(value)) and ".." not in value.split("/") and not re.search(r"[,:]", value)


def _paths_in(flag: str, value: str) -> list[str]:
    """Split a list of paths: `a,b` and, with scales, `a:0.5,b:1`."""
    pieces = value.split(",")
    return [piece.rpartition(":")[0] or piece for piece in pieces] if flag.endswith("-scaled") else pieces


def _names_model(word: str) -> bool:
    """Return whether a positional argument is the plan's file or a Hugging Face repository."""
    own = bool(_TOKEN_PATH.fullmatch(word)) and ".." not in word.split("/")
    return own or bool(_REPOSITORY.fullmatch(word))


def _is_template(value: str) -> bool:
    """Return whether a value is a template and not the path of one. vLLM first tries to open the value as a file."""
    return ("{{" in value or "{%" in value) and not value.startswith(("/", ".", "~", "{model}"))


def _is_plain_draft(value: str) -> bool:
    try:
        said = json.loads(value)
    except ValueError:
        return False
    if not isinstance(said, dict) or not _DRAFT_KEYS.issuperset(said):
        return False
    model = said.get("model", "a/b")
    return isinstance(model, str) and bool(_REPOSITORY.fullmatch(model))


def _of_ollama(model: str) -> Iterator[Need]:
    """Yield the registry in one of Ollama's model names: a first part with a dot, a port or a scheme."""
    rest = model.partition("://")[2] or model
    first, slash, _ = rest.partition("/")
    named = slash and ("." in first or ":" in first or first == "localhost")
    if "://" in model or (named and first.lower() not in _HUBS):
        yield Need("registry", first.lower(), at="daemonModel")


def _among(name: str, allowed: Sequence[str]) -> bool:
    return any(name == each or (each.endswith(ANY) and name.startswith(each[:-1])) for each in allowed)


def _is_below(path: str, root: str) -> bool:
    """Return by the text alone whether a path is below a directory and contains no `.` or `..`."""
    if not path.startswith("/") or not root.startswith("/"):
        return False
    parts, wanted = path.split("/")[1:], [part for part in root.split("/") if part]
    return not {"", ".", ".."} & set(parts[:-1]) and parts[-1] not in (".", "..") and parts[: len(wanted)] == wanted


def _holds(labels: Mapping[str, str], key: str, operator: str, values: tuple[str, ...]) -> bool:
    match operator:
        case "In":
            return labels.get(key) in values
        case "NotIn":
            return labels.get(key) not in values
        case "Exists":
            return key in labels
        case "DoesNotExist":
            return key not in labels
        case _:
            return False


def _selector(said: Mapping[str, Any] | None) -> NamespaceSelector | None:
    """Read a LabelSelector. An empty one matches every namespace, as in Kubernetes."""
    if said is None:
        return None
    return NamespaceSelector(
        tuple(sorted((str(k), str(v)) for k, v in (said.get("matchLabels") or {}).items())),
        tuple(
            (str(each.get("key")), str(each.get("operator")), tuple(str(v) for v in each.get("values") or ()))
            for each in said.get("matchExpressions") or ()
        ),
    )


def _texts(said: Mapping[str, Any], name: str) -> tuple[str, ...]:
    return tuple(str(each) for each in said.get(name) or ())
