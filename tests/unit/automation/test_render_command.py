"""`herdsman render`: the objects that it renders from files, and errors that name the file and the field."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import yaml

from automation.cli.main import invoke

MODEL = """
apiVersion: inference.llmkube.dev/v1alpha1
kind: Model
metadata: {name: base}
spec: {source: "https://example.com/model.gguf"}
"""
SERVICE = """
apiVersion: inference.llmkube.dev/v1alpha1
kind: InferenceService
metadata: {name: NAME}
spec: {modelRef: base, contextSize: 4096}
"""


BOMB = MODEL + "\n".join(
    ["x0: &x0 [y, y, y, y, y, y, y, y, y]"] + [f"x{n}: &x{n} [{', '.join([f'*x{n - 1}'] * 9)}]" for n in range(1, 9)]
)
"""Seven hundred bytes of YAML aliases that expand to hundreds of millions of values."""


def service(name: str = "svc", *, spec: str = "modelRef: base") -> str:
    return SERVICE.replace("NAME", name).replace("modelRef: base", spec)


def write(folder: Path, name: str, *documents: str) -> str:
    path = folder / name
    path.write_text("---\n".join(documents))
    return str(path)


def printed(capsys: pytest.CaptureFixture[str]) -> list[dict[str, Any]]:
    return list(yaml.safe_load_all(capsys.readouterr().out))


def test_a_service_becomes_its_objects(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert invoke(["render", "-f", write(tmp_path, "a.yaml", MODEL, service())]) == 0
    objects = printed(capsys)
    assert [thing["kind"] for thing in objects] == ["PersistentVolumeClaim", "Service", "Deployment"]
    assert {thing["metadata"]["namespace"] for thing in objects} == {"default"}
    arguments = objects[-1]["spec"]["template"]["spec"]["containers"][0]["args"]
    assert arguments[-3:] == ["--ctx-size", "4096", "--metrics"]


def test_a_folder_is_read_and_what_is_shared_is_printed_once(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    write(tmp_path, "z-model.yaml", MODEL)
    write(tmp_path, "a.yaml", service("a"), service("b"))
    write(tmp_path, "notes.txt", "not a manifest")
    assert invoke(["render", "-f", str(tmp_path), "-n", "prod", "-o", "json"]) == 0
    items = json.loads(capsys.readouterr().out)["items"]
    assert [f"{thing['kind']}/{thing['metadata']['name']}" for thing in items] == [
        *("PersistentVolumeClaim/llmkube-model-cache", "Service/a", "Deployment/a", "Service/b", "Deployment/b"),
    ]
    assert {thing["metadata"]["namespace"] for thing in items} == {"prod"}


def test_standard_input_and_lists_are_read() -> None:
    items = [yaml.safe_load(MODEL), yaml.safe_load(service())]
    given = json.dumps({"apiVersion": "v1", "kind": "List", "items": items})
    command = [sys.executable, "-m", "automation.cli", "render", "-f", "-"]
    shown = subprocess.run(command, input=given, capture_output=True, text=True, check=True)
    assert list(yaml.safe_load_all(shown.stdout))[-1]["kind"] == "Deployment"


@pytest.mark.parametrize(
    ("documents", "complaint"),
    [
        (
            (MODEL, service(spec="modelRef: other")),
            "InferenceService `svc`: spec.modelRef: the files have no Model `other` of namespace `default`",
        ),
        ((MODEL, service(spec="modelRef: base, replicas: 11")), "InferenceService `svc`: spec.replicas: `11`"),
        ((MODEL.replace("https", "ftp"), service()), "Model `base`: spec.source: "),
        ((MODEL, MODEL, service()), "document 2: Model `base`: metadata.name: is already used by "),
        ((MODEL.replace("name: base", ""),), "bad.yaml: metadata.name: is missing"),
        (("a: [1\nb: 2\n",), "bad.yaml line 2: is not YAML: "),
        ((BOMB,), "bad.yaml line 10: is refused: its aliases expand to more than 50000 values"),
        ((MODEL.replace("base", "&x [*x]"),), "bad.yaml line 4: is refused: an alias is inside"),
        (("just text\n", MODEL), "document 1: is not an object"),
    ],
)
def test_what_is_wrong_is_named_by_file_and_field_and_nothing_is_printed(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], documents: tuple[str, ...], complaint: str
) -> None:
    file = write(tmp_path, "bad.yaml", *documents)
    assert invoke(["render", "-f", file]) == 1
    shown = capsys.readouterr()
    assert shown.out == ""
    assert file in shown.err
    assert complaint in shown.err


def test_every_error_is_shown_at_once(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file = write(tmp_path, "bad.yaml", MODEL, service("a", spec="modelRef: x"), service("b", spec="modelRef: y"))
    assert invoke(["render", "-f", file, "-f", str(tmp_path / "none.yaml")]) == 1
    assert capsys.readouterr().err.count("Error: ") == 3


def test_fields_that_will_have_no_effect_are_named_beside_the_objects(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    deployment = "apiVersion: apps/v1\nkind: Deployment\nmetadata: {name: other}\n"
    known = service(spec="modelRef: base, colour: red, vllmConfig: {dtype: auto}")
    file = write(tmp_path, "a.yaml", MODEL.replace("spec: {", "spec: {shape: round, "), known, deployment)
    assert invoke(["render", "-f", file]) == 0
    shown = capsys.readouterr()
    assert "Model `base`: spec.shape: is not known to this version" in shown.err
    assert "InferenceService `svc`: spec.colour: is not known to this version" in shown.err
    assert "InferenceService `svc`: spec.vllmConfig: " in shown.err
    assert "Left out: " in shown.err
    assert "`other`" not in shown.out


def test_a_service_that_waits_for_a_host_is_said_to(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    metal = MODEL.replace("spec: {", "spec: {hardware: {accelerator: metal}, ")
    assert invoke(["render", "-f", write(tmp_path, "a.yaml", metal, service())]) == 0
    shown = capsys.readouterr()
    assert shown.out == ""
    assert "runs on a host that the loop chooses" in shown.err


def test_a_command_line_without_a_file_is_wrong_usage() -> None:
    assert invoke(["render"]) == 64
