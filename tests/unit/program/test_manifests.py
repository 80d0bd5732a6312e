"""Manifests read from files, folders and patterns, and the messages for invalid ones."""

from __future__ import annotations

from pathlib import Path

import pytest

from program.desired.service import DesiredService
from program.manifests import Manifests

MODEL = """
apiVersion: inference.llmkube.dev/v1alpha1
kind: Model
metadata: {{name: {name}}}
spec: {{source: "https://example.com/{name}.gguf"}}
"""
SERVICE = """
apiVersion: inference.llmkube.dev/v1alpha1
kind: InferenceService
metadata: {{name: {name}}}
spec: {{modelRef: {model}}}
"""


def model(name: str = "base") -> str:
    return MODEL.format(name=name)


def service(name: str = "chat", model: str = "base") -> str:
    return SERVICE.format(name=name, model=model)


def write(root: Path, **files: str) -> None:
    for name, text in files.items():
        path = root / name.replace("__", "/")
        path = path.with_name(f"{path.name}.yaml")
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)


def read(root: Path, *names: str) -> tuple[Manifests, list[DesiredService]]:
    manifests = Manifests("prod", root)
    for name in names:
        manifests.read(name)
    return manifests, [desired for _, desired in manifests.services()]


def errors(root: Path, *names: str) -> list[str]:
    manifests, _ = read(root, *names)
    return manifests.errors


def test_a_service_finds_its_model_in_another_file(tmp_path: Path) -> None:
    write(tmp_path, a=service(), b=model())
    manifests, (desired,) = read(tmp_path, "a.yaml", "b.yaml")
    assert manifests.errors == []
    assert (str(desired.key), desired.model.name, desired.owner) == ("llmkube/prod/chat", "base", None)


def test_a_folder_gives_its_manifests_but_not_those_of_its_folders(tmp_path: Path) -> None:
    write(tmp_path, fleet__a=model(), fleet__b=service(), fleet__c__d=service("deep"))
    (tmp_path / "fleet" / "README.md").write_text("not: [yaml")
    manifests, found = read(tmp_path, "fleet")
    assert manifests.errors == []
    assert [desired.key.name for desired in found] == ["chat"]


@pytest.mark.parametrize(("pattern", "names"), [("*/*", ["chat"]), ("**/*.yaml", ["chat", "deep"]), ("f*/[b]*", [])])
def test_a_pattern_gives_what_it_matches(tmp_path: Path, pattern: str, names: list[str]) -> None:
    write(tmp_path, fleet__a=model(), fleet__a2=service(), fleet__b=model("other"), fleet__c__d=service("deep"))
    (tmp_path / "fleet" / "README.md").write_text("not: [yaml")
    manifests, found = read(tmp_path, pattern)
    assert manifests.errors == []
    assert [desired.key.name for desired in found] == names


def test_a_file_that_several_paths_name_is_read_once(tmp_path: Path) -> None:
    write(tmp_path, a=f"{model()}---{service()}")
    manifests, found = read(tmp_path, "a.yaml", ".", "*.yaml", str(tmp_path / "a.yaml"))
    assert (manifests.errors, len(found)) == ([], 1)


def test_a_list_of_kubectl_and_json_are_read(tmp_path: Path) -> None:
    items = "".join(
        f"- {text.strip().replace(chr(10), chr(10) + '  ')}\n" for text in (model(), service(), service("two"))
    )
    write(tmp_path, a=f"apiVersion: v1\nkind: List\nitems:\n{items}")
    (tmp_path / "b.json").write_text('{"apiVersion": "v1", "kind": "List", "items": []}')
    manifests, found = read(tmp_path, ".")
    assert manifests.errors == []
    assert [desired.key.name for desired in found] == ["chat", "two"]


def test_documents_of_other_kinds_are_left_out_and_said(tmp_path: Path) -> None:
    write(tmp_path, a=f"{model()}---\napiVersion: v1\nkind: Secret\nmetadata: {{name: token}}\n---\n")
    manifests, found = read(tmp_path, "a.yaml")
    assert (manifests.errors, found) == ([], [])
    assert manifests.notes == ["Left out: a.yaml document 2: v1 Secret `token`"]


def test_a_field_that_nobody_knows_is_a_note_on_its_document(tmp_path: Path) -> None:
    write(tmp_path, a=model().replace("spec: {", "spec: {typo: 1, "))
    manifests, _ = read(tmp_path, "a.yaml")
    assert manifests.notes == ["Warning: a.yaml: Model `base`: spec.typo: is not known to this version of Herdsman"]


@pytest.mark.parametrize(
    ("text", "error"),
    [
        ("a: [", "a.yaml line 1: is not YAML: "),
        ("day: !!timestamp 2024-13-45", "a.yaml line 1: is refused: tag !!timestamp is not supported"),
        ("a: b\nc: !!binary aGk=", "a.yaml line 2: is refused: tag !!binary is not supported"),
        ("? [a]\n: b", "a.yaml line 1: is refused: a key is a list"),
        ("kind: List\nitems: 5", "a.yaml: items: is not a list"),
        ("kind: ModelList\nitems: [5]", "a.yaml items[0]: is not an object with apiVersion, kind, metadata and spec"),
        ("kind: Model\nmetadata: [1]", "a.yaml: metadata: is not an object"),
        ("kind: Model\nmetadata: {name: 1}", "a.yaml: metadata.name: is not a string; put it in quotes"),
        ("kind: [Model]\nmetadata: {name: a}", "a.yaml: kind: is not a string; put it in quotes"),
        ("apiVersion: 1\nkind: A\nmetadata: {name: a}", "a.yaml: A `a`: apiVersion: is not a string; "),
        (
            model().replace("name: base", "name: base, labels: [1]"),
            "a.yaml: Model `base`: metadata.labels: is not an obj",
        ),
        (
            model().replace("name: base", "name: base, labels: {a: 1}"),
            "a.yaml: Model `base`: metadata.labels[a]: is not a string; put it in quotes",
        ),
        (
            "apiVersion: v1\nkind: ConfigMap\nmetadata: {name: a}\ndata: {b: 1}",
            "a.yaml: ConfigMap `a`: data[b]: is not a string; put it in quotes",
        ),
        (
            "apiVersion: v1\nkind: ServiceAccount\nmetadata: {name: a}\nsecrets: [b]",
            "a.yaml: ServiceAccount `a`: secrets[0]: is not an object",
        ),
        (
            model().replace("name: base", "name: base, namespace: {}"),
            "a.yaml: Model `base`: metadata.namespace: is not a string; put it in quotes",
        ),
        (
            model().replace("name: base", "name: base, ownerReferences: [{kind: 1}]"),
            "a.yaml: Model `base`: metadata.ownerReferences[0].kind: is not a string; put it in quotes",
        ),
        (
            "kind: ConfigMap\nmetadata: {name: picker}",
            "a.yaml: ConfigMap `picker`: apiVersion: is missing or is not a string",
        ),
        ("just words", "a.yaml: is not an object with apiVersion, kind, metadata and spec"),
        ("kind: Model", "a.yaml: metadata.name: is missing"),
        (
            service(),
            "a.yaml: InferenceService `chat`: spec.modelRef: the files have no Model `base` of namespace `prod`",
        ),
        (
            f"{model()}---{model()}",
            "a.yaml document 2: Model `base`: metadata.name: is already used by a.yaml document 1",
        ),
        (model().replace("https:", "gopher:"), "a.yaml: Model `base`: spec.source: "),
        (
            f"{model()}---{service().replace('spec: {', 'spec: {replicas: many, ')}",
            "a.yaml document 2: InferenceService `chat`: spec.replicas: `many` is not a whole number",
        ),
        (
            f"{model()}---{service().replace('chat}', 'chat, annotations: {herdsman.dev/adopt: true}}')}",
            "a.yaml document 2: InferenceService `chat`: metadata.annotations[herdsman.dev/adopt]: is not a string; ",
        ),
    ],
)
def test_what_is_wrong_is_named_by_file_and_field(tmp_path: Path, text: str, error: str) -> None:
    write(tmp_path, a=text)
    (found,) = errors(tmp_path, "a.yaml")
    assert found.startswith(error)


def test_everything_that_is_wrong_is_named_at_once_and_a_wrong_model_only_once(tmp_path: Path) -> None:
    write(tmp_path, a=model().replace("https:", "gopher:"), b=service(), c=service("two", "none"))
    found = errors(tmp_path, "a.yaml", "b.yaml", "c.yaml", "d.yaml", "x*.yaml", "empty")
    assert [line.partition(": ")[0] for line in found] == ["d.yaml", "x*.yaml", "empty", "a.yaml", "c.yaml"]


def test_an_empty_folder_and_text_that_is_no_utf8_are_errors(tmp_path: Path) -> None:
    (tmp_path / "empty").mkdir()
    (tmp_path / "a.yaml").write_bytes(b"\xff\xfe")
    assert errors(tmp_path, "empty", "a.yaml") == [
        "empty: no .yaml, .yml, .json file is in this folder",
        "a.yaml: is not UTF-8 text",
    ]


@pytest.mark.parametrize("name", ["x" * 5000, "a\0b", "x" * 5000 + "*"])
def test_what_no_file_can_be_named_is_refused(tmp_path: Path, name: str) -> None:
    (error,) = errors(tmp_path, name)
    assert error.startswith(repr(name)[:7])


def test_a_date_without_quotes_is_a_text(tmp_path: Path) -> None:
    """`kubectl apply` reads it in the same way."""
    dated = model().replace("name: base", "name: base, annotations: {until: 2024-01-01}")
    manifests = Manifests("prod", tmp_path)
    manifests.read_text("a.yaml", dated)
    assert manifests.errors == []
    assert manifests.referred[0].cr["metadata"]["annotations"] == {"until": "2024-01-01"}
