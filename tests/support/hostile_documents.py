"""Wrong manifests for hypothesis: the examples with values of the wrong kind at random places."""

from __future__ import annotations

import copy
import datetime
import functools
import os
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import yaml
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st

from kubeapi.json_types import Json

Path_ = tuple[Any, ...]

EXAMPLES = Path(__file__).parents[2] / "examples"
FULL = Path(__file__).parent / "full_manifests"
"""Manifests that use most fields of each dialect, with the objects that their services refer to."""
_NO_MANIFESTS = ("ci", "project")
"""Folders of examples whose YAML files are not manifests."""
MORE = "HERDSMAN_FUZZ_EXAMPLES"
"""Environment variable: the number of random examples for each test."""


def bounded(examples: int) -> settings:
    """Return the profile of CI: the same few examples in each run. With `MORE` set, that many new examples."""
    more = int(os.environ.get(MORE, "0"))
    return settings(
        max_examples=more or examples,
        derandomize=not more,
        database=None,
        deadline=None,
        suppress_health_check=list(HealthCheck),
    )


@functools.cache
def example_files() -> dict[str, list[Json]]:
    """Read the manifests of the examples, and those of `FULL`: documents by the name of their file."""
    # Parts below the examples only: the checkout may lie in a folder of one of these names.
    paths = sorted(
        path for path in EXAMPLES.rglob("*.yaml") if not set(path.relative_to(EXAMPLES).parts) & set(_NO_MANIFESTS)
    )
    found = {str(path.relative_to(path.parents[1])): _documents(path) for path in (*paths, *sorted(FULL.iterdir()))}
    assert len(found) >= 15
    return found


def _documents(path: Path) -> list[Json]:
    text = path.read_text().replace("file://MODEL_FILE", "file:///srv/model.gguf")
    return list(yaml.safe_load_all(text))


WORDS = st.sampled_from(
    [
        *("", " ", "a", "-", "/", "a/b", "{", "{{", "{{ .Name }}", "{{ .X", "$(A)", "%20", "%", "é\n", "\x7f", "true"),
        *("1", "-1", "0", "1Gi", "9" * 400, "1e999", "99.9", "2024-01-01", "x" * 300, "main", "default", "latency"),
        *(
            "llamacpp",
            "vllm",
            "sglang",
            "ollama",
            "generic",
            "hf://a/b",
            "hf://",
            "pvc://",
            "s3://",
            "oci://",
            "file://",
        ),
        *(
            "http://[",
            "https://e.org/m.gguf",
            "https://e.org:x/",
            "//",
            "s3://b/%zz",
            "nvidia.com/gpu",
            "\N{GRINNING FACE}",
        ),
        *("--served-model-name", "--", "--lora-modules", "-tp", "NodePort", "RollingUpdate", "Pods", "Resource"),
    ]
)
SCALARS: st.SearchStrategy[Any] = (
    st.none()
    | st.booleans()
    | st.integers(-3, 9)
    | st.sampled_from([2**31, 2**63, -(2**63), 2**70, 0.5, 1e300])
    | WORDS
)
NOT_JSON: st.SearchStrategy[Any] = st.sampled_from(
    [
        *(datetime.date(2024, 1, 1), datetime.datetime(2024, 1, 1, 10), b"\xff", {"a", "b"}),
        *(
            float("nan"),
            float("inf"),
            {1: 2},
            {True: 1, None: 2},
            {(1, 2): 3},
            {datetime.date(2024, 1, 1): 1},
            "\ud800",
        ),
    ]
)
KEYS = st.sampled_from(
    ["", "a", "name", "kind", "metadata", "labels", "annotations", "spec", "items", "image", "args", "resources"]
)
JSON: st.SearchStrategy[Any] = st.recursive(
    SCALARS, lambda inner: st.lists(inner, max_size=3) | st.dictionaries(KEYS, inner, max_size=3), max_leaves=5
)
ANYTHING = st.one_of(JSON, JSON, NOT_JSON)
"""Values for any place of a file."""


def places(value: Any, at: Path_ = ()) -> Iterator[Path_]:
    """Yield the paths of all values of a document, that of the document itself included."""
    yield at
    items = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    for key, inner in items:
        yield from places(inner, (*at, key))


def at_place(value: Any, path: Path_) -> Any:
    """Return the value at a path."""
    for key in path:
        value = value[key]
    return value


@st.composite
def changed_examples(
    draw: st.DrawFn,
    values: st.SearchStrategy[Any] = ANYTHING,
    *,
    identity: bool = True,
    of: dict[str, list[Json]] | None = None,
) -> list[Any]:
    """The documents of one file, by default of an example, with one to four changes.

    Without `identity` only fields below `spec` change.
    """
    files = of or example_files()
    documents = copy.deepcopy(files[draw(st.sampled_from(sorted(files)))])
    for _ in range(draw(st.integers(1, 4))):
        index = draw(st.integers(0, len(documents) - 1))
        whole = documents[index]
        found = [path for path in places(whole) if identity or (path[:1] == ("spec",))]
        if not found:
            continue
        path = found[draw(st.integers(0, len(found) - 1))]
        documents[index] = _changed(draw, whole, path, values)
    return documents


def _changed(draw: st.DrawFn, whole: Any, path: Path_, values: st.SearchStrategy[Any]) -> Any:
    kind = draw(st.sampled_from(["replace", "replace", "remove", "add", "wrap", "transplant", "rename"]))
    old = at_place(whole, path)
    if kind == "add" and isinstance(old, dict):
        old[draw(KEYS | WORDS)] = copy.deepcopy(draw(values))
        return whole
    if kind == "add" and isinstance(old, list):
        old.append(copy.deepcopy(draw(values)))
        return whole
    if kind in ("remove", "rename") and path:
        owner = at_place(whole, path[:-1])
        taken = owner.pop(path[-1])
        if kind == "rename" and isinstance(owner, dict):
            owner[draw(KEYS | WORDS)] = taken
        return whole
    new = [old] if kind == "wrap" else _elsewhere(draw) if kind == "transplant" else copy.deepcopy(draw(values))
    if not path:
        return new
    at_place(whole, path[:-1])[path[-1]] = new
    return whole


def _elsewhere(draw: st.DrawFn) -> Any:
    """Take a value from another example: often of the right kind, but never the right value."""
    documents = example_files()[draw(st.sampled_from(sorted(example_files())))]
    whole = documents[draw(st.integers(0, len(documents) - 1))]
    found: Sequence[Path_] = list(places(whole))
    return copy.deepcopy(at_place(whole, found[draw(st.integers(0, len(found) - 1))]))


def as_yaml(documents: list[Any]) -> str:
    """Write documents as YAML, including values that JSON cannot express."""
    return yaml.dump_all(documents, Dumper=_Dumper, sort_keys=False, allow_unicode=False)


class _Dumper(yaml.SafeDumper):
    def ignore_aliases(self, data: Any) -> bool:
        return True
