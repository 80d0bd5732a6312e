"""Every command that reads a file ends with a result or with an error that names the fault, for any content."""

from __future__ import annotations

import contextlib
import json
import tempfile
from pathlib import Path
from typing import Any

import pytest
import yaml
from hypothesis import given
from hypothesis import strategies as st
from typer.testing import CliRunner

from automation.adoption.moving.planning import plan_give
from automation.cli.main import application
from automation.preview.previewer import Previewer
from automation.preview.report import as_json, as_terminal_text, markdown
from automation.preview.requests import preview_files
from components.options import RenderOptions
from components.policies.policy import PolicyUnreadable
from components.policies.reading import load_policies
from components.render import render
from kubeapi import yaml_text
from kubeapi.config import ConfigInvalid, kubeconfig_access
from kubeapi.errors import KubeError
from kubeapi.json_types import Json
from program.desired.errors import DesiredError, SpecInvalid
from program.dialects.llmkube.parse.model import model_of
from program.dialects.llmkube.parse.service import parse_service
from program.dialects.registry import DIALECTS, KINDS, LLMKUBE, dialect_named
from program.manifests import Manifests
from program.static.config import KEYS, read_config
from program.static.reading import marked, read_fleet
from tests.fakes.echoing_client import EchoingClient
from tests.support.hostile_documents import ANYTHING, JSON, WORDS, as_yaml, bounded, changed_examples, example_files

APP = application(["render", "convert"])
TARGETS = ("llmkube", "kserve", "llmaz")
OTHERS = {name: kind for name, kind in KINDS.items() if name != LLMKUBE}


def ends_well(text: str, *arguments: str) -> str:
    """Run a command on a file, and return its output. If it refuses the file, it must print an error."""
    done = CliRunner().invoke(APP, [*arguments, "-f", "-"], input=text.encode("utf-8", "surrogatepass"))
    if done.exception is not None and not isinstance(done.exception, SystemExit):
        raise done.exception
    assert done.exit_code in (0, 1), done.stderr
    assert done.exit_code == 0 or done.stderr
    return done.stdout


def manifests_of(text: str) -> Manifests:
    manifests = Manifests("default")
    manifests.read_text("a.yaml", text)
    return manifests


def documents_read(text: str) -> list[Json]:
    manifests = manifests_of(text)
    found = [*manifests.referred]
    for dialect in DIALECTS:
        found += manifests.services_of(dialect)
    return [each.cr for each in found]


def test_the_examples_are_right_before_they_are_changed() -> None:
    rendered = 0
    for documents in example_files().values():
        rendered += bool(ends_well(as_yaml(documents), "render"))
        for target in TARGETS:
            ends_well(as_yaml(documents), "convert", "--to", target)
    assert rendered > len(example_files()) / 2


@bounded(60)
@given(documents=changed_examples(), output=st.sampled_from(["yaml", "json"]))
def test_render_ends_in_objects_or_in_an_error(documents: list[Any], output: str) -> None:
    printed = ends_well(as_yaml(documents), "render", "-o", output)
    if output == "json" and printed:
        json.loads(printed, parse_constant=lambda word: pytest.fail(f"{word} is not JSON"))


@bounded(60)
@given(documents=changed_examples(), target=st.sampled_from(TARGETS), output=st.sampled_from(["yaml", "json"]))
def test_convert_ends_in_documents_or_in_an_error(documents: list[Any], target: str, output: str) -> None:
    ends_well(as_yaml(documents), "convert", "--to", target, "-o", output)


@bounded(60)
@given(documents=changed_examples())
def test_a_preview_of_files_ends_in_changes_or_in_an_error(documents: list[Any]) -> None:
    client = EchoingClient()
    previewer = Previewer(client, options=RenderOptions())
    found = preview_files(client, previewer, manifests_of(as_yaml(documents)))
    json.dumps(as_json(found), allow_nan=False)
    assert as_terminal_text(found, colour=False).encode()
    assert markdown(found).encode()


@bounded(60)
@given(documents=changed_examples())
def test_a_service_of_any_file_moves_to_the_loop_or_is_told_why_not(documents: list[Any]) -> None:
    manifests = manifests_of(as_yaml(documents))
    live = [
        marked(each, "p/s").manifest
        for _, desired in manifests.services()
        for each in _rendered(desired)
        if each.manifest["kind"] in ("Deployment", "Service", "LeaderWorkerSet")
    ]
    client = EchoingClient(live)
    for dialect in DIALECTS:
        for document in manifests.services_of(dialect):
            try:
                plan_give(client, document, manifests, options=RenderOptions())
            except (DesiredError, KubeError):
                continue


def _rendered(desired: Any) -> Any:
    try:
        return render(desired, RenderOptions()).objects
    except DesiredError:
        return ()


@bounded(40)
@given(documents=changed_examples(), values=st.dictionaries(st.sampled_from(KEYS), JSON, max_size=3))
def test_a_static_fleet_of_any_files_is_read_or_refused(documents: list[Any], values: Json) -> None:
    with tempfile.TemporaryDirectory() as folder:
        root = Path(folder)
        (root / "all.yaml").write_text(as_yaml(documents))
        config = {"manifests": "all.yaml", **{key: _config_value(value) for key, value in values.items()}}
        read_fleet(read_config(config, root), root, stack="p/s")


CONFIG: Json = {
    "manifests": ["all.yaml"],
    "namespace": "prod",
    "clusters": {"eu": {"manifests": "all.yaml", "context": "c", "kubeconfig": "k", "extensions": ["a.b/v1/C"]}},
    "hosts": {
        "a": {"endpoint": "https://a:1", "tokenFile": "t", "caFile": "c"},
        "b": {"address": "h", "user": "u", "identityFile": "~/k", "knownHosts": "k", "bastion": {"address": "b"}},
    },
    "policies": "policies",
    "extensions": ["a.b/v1/C"],
    "options": {"cacheSize": "1Ti", "monitors": False, "sharedGpuSelector": {"a": "b"}, "runtimeImages": {"vllm": "x"}},
}


@bounded(80)
@given(whole=changed_examples(JSON, of={"config": [CONFIG]}))
def test_any_config_of_a_static_fleet_is_read_or_refused(whole: list[Any]) -> None:
    (values,) = whole
    if not isinstance(values, dict):
        return
    with tempfile.TemporaryDirectory() as folder:
        root = Path(folder)
        (root / "all.yaml").write_text(as_yaml(next(iter(example_files().values()))))
        config = read_config({str(key): _config_value(value) for key, value in values.items()}, root)
        read_fleet(config, root, stack="p/s")


def _config_value(value: Any) -> str:
    return value if isinstance(value, str) else json.dumps(value)


@bounded(80)
@given(documents=changed_examples(JSON, identity=False))
def test_any_object_of_a_cluster_is_parsed_or_refused(documents: list[Any]) -> None:
    """A CRD of another version, or of the peer, accepts such objects. The API server has validated the metadata."""
    objects = [each for each in documents if isinstance(each, dict) and "metadata" in each]
    for each in objects:
        each["metadata"].setdefault("namespace", "default")
    look = _Objects(objects)
    for cr in objects:
        for dialect, kind in OTHERS.items():
            if cr["kind"] == kind.kind and cr["apiVersion"].partition("/")[0] == kind.group:
                _parsed(lambda dialect=dialect, cr=cr: dialect_named(dialect).parse(cr, look).desired)  # type: ignore[misc]
        if cr["kind"] == "InferenceService":
            for model in (each for each in objects if each["kind"] == "Model"):
                _parsed(lambda cr=cr, model=model: parse_service(cr, model_of(model)))  # type: ignore[misc]


def _parsed(parse: Any) -> None:
    try:
        render(parse(), RenderOptions())
    except DesiredError as refused:
        error = refused
    else:
        return
    assert not isinstance(error, SpecInvalid) or error.field


@bounded(80)
@given(documents=changed_examples(JSON))
def test_any_object_is_parsed_or_refused(documents: list[Any]) -> None:
    """The objects include some that no API server would store."""
    objects = [each for each in documents if isinstance(each, dict)]
    named = [each for each in objects if isinstance(each.get("metadata"), dict) and "name" in each["metadata"]]
    look = _Objects(named)
    models = [each for each in objects if each.get("kind") == "Model"]
    for cr in objects:
        for dialect in OTHERS:
            _parsed(lambda dialect=dialect, cr=cr: dialect_named(dialect).parse(cr, look).desired)  # type: ignore[misc]
        for model in models:
            _parsed(lambda cr=cr, model=model: parse_service(cr, model_of(model)))  # type: ignore[misc]


class _Objects:
    """A `Lookup` over objects whose metadata is valid."""

    def __init__(self, objects: list[Json]) -> None:
        self._read = Manifests("default")
        for each in objects:
            self._read.read_text("a.yaml", as_yaml([each]))

    def __call__(self, kind: Any, namespace: str | None, name: str, /) -> Json | None:
        return self._read(kind, namespace, name)

    def listed(self, kind: Any, namespace: str) -> tuple[Json, ...]:
        return self._read.listed(kind, namespace)


@bounded(80)
@given(value=ANYTHING, text=st.text(max_size=40) | WORDS)
def test_any_text_is_read_as_json_or_refused_as_yaml(value: Any, text: str) -> None:
    for each in (as_yaml([value]), text, f"a: {text}", f'a: "{text}"', f"{text}: 1", f"- !!{text} x"):
        try:
            found = list(yaml_text.load_all(each))
        except yaml.YAMLError:
            continue
        json.dumps(found, allow_nan=False, ensure_ascii=False).encode("utf-8")


KUBECONFIG: Json = {
    "current-context": "a",
    "contexts": [{"name": "a", "context": {"cluster": "a", "user": "a", "namespace": "b"}}],
    "clusters": [{"name": "a", "cluster": {"server": "https://127.0.0.1:1", "certificate-authority-data": "YQ=="}}],
    "users": [{"name": "a", "user": {"token": "t"}}],
}


@bounded(60)
@given(whole=changed_examples(of={"kubeconfig": [KUBECONFIG]}))
def test_any_kubeconfig_is_read_or_refused(whole: list[Any]) -> None:
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "config"
        path.write_text(as_yaml(whole))
        with contextlib.suppress(ConfigInvalid):
            kubeconfig_access(str(path))


POLICY: Json = {
    "apiVersion": "herdsman.dev/v1alpha1",
    "kind": "Policy",
    "metadata": {"name": "a"},
    "spec": {"enforcement": "mandatory", "match": {"namespaces": ["a"]}, "rules": [{"maxReplicas": 2}]},
}


@bounded(60)
@given(whole=changed_examples(of={"policy": [POLICY]}))
def test_any_policy_is_read_or_refused(whole: list[Any]) -> None:
    with tempfile.TemporaryDirectory() as folder:
        (Path(folder) / "a.yaml").write_text(as_yaml(whole))
        with contextlib.suppress(PolicyUnreadable):
            load_policies(Path(folder))
