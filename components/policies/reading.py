"""Reads a folder of policies: `*.yaml` documents of kind Policy, and `*.py` files with custom rules.

Called by the loop, by previews and by static fleets. A folder with one mistake is refused as a whole, because a policy
that is skipped would not be enforced.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import yaml
from pydantic import ValidationError

from components.policies.evaluator import ANSWER_TIMEOUT_S, Evaluator, RuleUnusable
from components.policies.in_force import FolderPolicies, OwnRule, Policy
from components.policies.policy import NoPolicies, PolicyUnreadable
from components.policies.schema import API_VERSION, KIND, Match, PolicyDocument
from kubeapi.yaml_text import AliasRefused, load_all

YAML_SUFFIXES = (".yaml", ".yml", ".json")
LARGEST_FILE = 1 << 20
"""Bytes; a ConfigMap holds no more."""
MOST_FILES = 256

_LONGEST_TOLD = 64


def load_policies(folder: Path | None, *, answer_timeout_s: float = ANSWER_TIMEOUT_S) -> FolderPolicies | NoPolicies:
    """Read all policies of a folder, without its subfolders; None means no policies.

    Raises PolicyUnreadable. The result may hold a process, which `close` ends.
    """
    if folder is None:
        return NoPolicies()
    texts = read_texts(folder)
    policies: list[Policy] = []
    own: list[OwnRule] = []
    places: list[str] = []
    seen: dict[str, str] = {}
    for name, text in texts.items():
        if name.endswith(".py"):
            continue
        for index, document in _documents(name, text):
            where = f"{name}: document {index + 1}" if index else name
            policy = _policy(where, document)
            if policy.name in seen:
                raise PolicyUnreadable(f"{where}: metadata.name: `{policy.name}` is taken by {seen[policy.name]}")
            seen[policy.name] = where
            policies.append(policy)
            for number, rule in enumerate(policy.spec.rules):
                own.append(OwnRule(policy.name, policy.spec.match, policy.mandatory, rule))
                places.append(f"{where}: spec.rules[{number}].cel")
    python = {name: text for name, text in texts.items() if name.endswith(".py")}
    if not own and not python:
        return FolderPolicies(tuple(policies))
    expressions = [rule.cel.cel for rule in own if rule.cel is not None]
    try:
        evaluator = Evaluator(folder, expressions, python, answer_timeout_s=answer_timeout_s)
    except RuleUnusable as error:
        place = places[error.where] if isinstance(error.where, int) else error.where or str(folder)
        raise PolicyUnreadable(f"{place}: {error.why}") from None
    for name, enforcement, namespaces, names, of_kinds in evaluator.rules:
        try:
            match = Match.model_validate({"namespaces": namespaces, "names": names, "kinds": of_kinds})
        except ValidationError as error:
            evaluator.close()
            given = error.errors(include_url=False)[0]["input"]
            raise PolicyUnreadable(
                f"{folder}: Python rule `{name}`: `{str(given)[:_LONGEST_TOLD]}` is not a kind that policies know"
            ) from None
        own.append(OwnRule(name, match, enforcement == "mandatory"))
    return FolderPolicies(tuple(policies), tuple(own), evaluator)


def read_texts(folder: Path) -> dict[str, str]:
    """Return the text of each policy file by its name, in order of the names. Raises PolicyUnreadable.

    Names that begin with a dot are skipped: a mounted ConfigMap contains such links.
    """
    try:
        paths = sorted(path for path in folder.iterdir() if _is_policy(path))
        if len(paths) > MOST_FILES:
            raise PolicyUnreadable(f"{folder}: has {len(paths)} files; at most {MOST_FILES} are read")
        texts = {}
        for path in paths:
            with path.open("rb") as file:
                data = file.read(LARGEST_FILE + 1)
            if len(data) > LARGEST_FILE:
                raise PolicyUnreadable(f"{path.name}: is larger than {LARGEST_FILE >> 20} MiB")
            texts[path.name] = data.decode("utf-8")
    except UnicodeDecodeError:
        raise PolicyUnreadable(f"{path.name}: is not UTF-8 text") from None
    except OSError as error:
        name = error.filename or folder
        raise PolicyUnreadable(f"{name}: {error.strerror}; name a folder of policies that can be read") from None
    return texts


def digest_of(texts: dict[str, str]) -> str:
    """Return a digest of a folder's content, by which a change is noticed even if the times of the files are wrong."""
    return hashlib.sha256(repr(sorted(texts.items())).encode("utf-8", "surrogatepass")).hexdigest()


def _is_policy(path: Path) -> bool:
    return path.suffix in (*YAML_SUFFIXES, ".py") and not path.name.startswith(".") and path.is_file()


def _documents(name: str, text: str) -> Iterator[tuple[int, Any]]:
    try:
        loaded = list(load_all(text, aliases=False))
    except AliasRefused:
        raise PolicyUnreadable(
            f"{name}: has YAML aliases, which can expand to any size; replace each alias by its value"
        ) from None
    except (yaml.YAMLError, ValueError) as error:
        mark = getattr(error, "problem_mark", None)
        line = f" line {mark.line + 1}" if mark else ""
        problem = getattr(error, "problem", None) or "cannot be read"
        raise PolicyUnreadable(f"{name}:{line} is not YAML: {problem}") from None
    for index, document in enumerate(loaded):
        if document is not None:
            yield index, document


def _policy(where: str, document: Any) -> Policy:
    if not isinstance(document, dict):
        raise PolicyUnreadable(f"{where}: is not an object of kind {KIND}")
    kind, version = document.get("kind"), document.get("apiVersion")
    if kind != KIND or version != API_VERSION:
        told = f"{str(version)[:_LONGEST_TOLD]}, kind {str(kind)[:_LONGEST_TOLD]}"
        raise PolicyUnreadable(f"{where}: is {told}; only {API_VERSION}, kind {KIND} is allowed in this folder")
    try:
        read = PolicyDocument.model_validate(document)
    except ValidationError as error:
        first = error.errors(include_url=False)[0]
        field = _path(first["loc"])
        if first["type"] == "extra_forbidden":
            raise PolicyUnreadable(
                f"{where}: {field}: is not a field of a policy; see docs/how-to/policies.md"
            ) from None
        given = first["input"]
        told = f"`{str(given)[:_LONGEST_TOLD]}`: " if isinstance(given, (str, int, float)) else ""
        raise PolicyUnreadable(f"{where}: {field}: {told}{first['msg'][:1].lower()}{first['msg'][1:]}") from None
    return Policy(read.metadata.name, read.spec)


def _path(parts: tuple[int | str, ...]) -> str:
    path = ""
    for part in parts:
        path += f"[{part}]" if isinstance(part, int) else f".{part}" if path else str(part)
    return path
