"""Each applied version is recorded, and one command returns to it; the plain Pulumi CLI reads an exported stack."""

from __future__ import annotations

import json
import os
import subprocess
from pathlib import Path
from typing import Any

import pytest

from automation.cli import rollback as command
from automation.cli.main import EXIT_FAILED, invoke
from automation.history.revision import Revision, read_all
from kubeapi import kinds
from kubeapi.client import KubeClient
from tests.support.loop import LoopProcess, arguments, deployed, edit, eventually, model, service, settled

AN_HOUR = "2026-01-01T00:00:00Z"


def revisions(client: KubeClient, namespace: str, count: int, name: str = "svc") -> tuple[Revision, ...]:
    owner = client.get(kinds.INFERENCE_SERVICES, namespace, name)["metadata"]["uid"]

    def look() -> tuple[Revision, ...]:
        found = read_all(client.list(kinds.CONTROLLER_REVISIONS, namespace)["items"], owner=owner)
        return found if len(found) >= count else ()

    return eventually(look, what=f"{count} revisions of {name}")


def has_argument(client: KubeClient, namespace: str, words: str) -> None:
    eventually(lambda: words in arguments(deployed(client, namespace)), what=f"`{words}` to be applied")


def test_a_version_is_recorded_put_back_and_recorded_again(
    client: KubeClient,
    loop: LoopProcess,
    loop_kubeconfig: Path,
    control_plane: Any,
    namespace: str,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    model(client, namespace, source="https://example.invalid/base.gguf")
    service(client, namespace, contextSize=4096, skipModelInit=True)
    settled(client, namespace)
    revisions(client, namespace, 1)
    client.request(
        "PATCH",
        kinds.INFERENCE_SERVICES.path(namespace, "svc"),
        query={"fieldManager": "somebody"},
        body={"spec": {"contextSize": 8192}},
        content_type="application/merge-patch+json",
    )
    has_argument(client, namespace, "--ctx-size 8192")
    newest, oldest = revisions(client, namespace, 2)
    assert (newest.number, newest.changed_by, newest.is_applied) == (2, "somebody", True)
    assert "--ctx-size 4096 -> 8192" in newest.changes and 0 < newest.duration_s < 30
    assert oldest.data["spec"]["contextSize"] == 4096

    cluster = ["-n", namespace, "--kubeconfig", str(control_plane.kubeconfig)]
    assert invoke(["history", "svc", *cluster]) == 0
    shown = capsys.readouterr().out
    assert "2*" in shown and "somebody" in shown and "--ctx-size 4096 -> 8192" in shown
    assert invoke(["rollback", "svc", *cluster]) == EXIT_FAILED, "nobody to ask and not told to go ahead"
    assert "--ctx-size" in capsys.readouterr().out
    assert invoke(["rollback", "svc", "--preview", "-o", "json", *cluster]) == 2
    assert json.loads(capsys.readouterr().out)["revision"] == 1
    assert client.get(kinds.INFERENCE_SERVICES, namespace, "svc")["spec"]["contextSize"] == 8192, "only looked at"

    meanwhile = [
        lambda: client.patch(kinds.INFERENCE_SERVICES, namespace, "svc", {"metadata": {"labels": {"edited": "yes"}}}),
        lambda: client.patch(
            kinds.INFERENCE_SERVICES, namespace, "svc", {"status": {"lastUpdated": AN_HOUR}}, subresource="status"
        ),
    ]
    tell = command._tell
    monkeypatch.setattr(command, "_tell", lambda *shown: (tell(*shown), meanwhile.pop(0)()))
    assert invoke(["rollback", "svc", "--yes", *cluster]) == EXIT_FAILED
    assert "was edited during the command" in capsys.readouterr().err
    assert invoke(["rollback", "svc", "--yes", *cluster]) == 0, "the status was written, which is no edit"
    assert meanwhile == []
    has_argument(client, namespace, "--ctx-size 4096")
    again = revisions(client, namespace, 3)[0]
    assert (again.number, again.changed_by) == (3, "herdsman-rollback")
    assert again.data == oldest.data
    capsys.readouterr()
    assert invoke(["rollback", "svc", "--to", "77", *cluster]) == EXIT_FAILED
    assert "the kept revisions are: 3, 2, 1" in capsys.readouterr().err


def test_what_failed_is_recorded_as_that_and_put_right_when_it_goes_well(
    client: KubeClient, loop: LoopProcess, namespace: str
) -> None:
    model(client, namespace)
    blocker = {
        "apiVersion": "v1",
        "kind": "Service",
        "metadata": {"name": "svc"},
        "spec": {"ports": [{"port": 80}]},
    }
    client.create(kinds.SERVICES, namespace, blocker)
    service(client, namespace, runtime="vllm", skipModelInit=True)
    failed = revisions(client, namespace, 1)[0]
    assert not failed.is_applied and "already exists and belongs to" in failed.result
    client.delete(kinds.SERVICES, namespace, "svc")
    edit(client, namespace, replicas=1)
    eventually(lambda: revisions(client, namespace, 1)[0].is_applied, what="the version to be applied")


def test_an_export_is_read_by_a_pulumi_without_us(
    client: KubeClient,
    loop: LoopProcess,
    pulumi_cli: Path,
    namespace: str,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:
    model(client, namespace)
    service(client, namespace, runtime="vllm", skipModelInit=True)
    settled(client, namespace)
    capsys.readouterr()
    assert invoke(["export", "svc", "-n", namespace, "--state", f"file://{loop.state}"]) == 0
    file = tmp_path / "exported.json"
    file.write_text(capsys.readouterr().out)

    def pulumi(*arguments: str) -> str:
        environment = {
            "PATH": os.environ["PATH"],
            "HOME": str(tmp_path),
            "PULUMI_BACKEND_URL": f"file://{tmp_path}",
            "PULUMI_CONFIG_PASSPHRASE": "another",
            "PULUMI_SKIP_UPDATE_CHECK": "true",
        }
        project = tmp_path / "project"
        project.mkdir(exist_ok=True)
        (project / "Pulumi.yaml").write_text("name: herdsman\nruntime: python\n")
        command = [str(pulumi_cli), "--non-interactive", *arguments]
        done = subprocess.run(command, cwd=project, env=environment, capture_output=True, text=True, timeout=60)
        assert done.returncode == 0, done.stderr
        return done.stdout

    pulumi("stack", "init", namespace)
    pulumi("stack", "import", "--file", str(file))
    assert "kubernetes:apps/v1:Deployment::llmkube/svc/deployment" in pulumi("stack", "--show-urns")
    assert invoke(["export", "nobody", "-n", namespace, "--state", f"file://{loop.state}"]) == EXIT_FAILED
    assert "no stack of this state holds" in capsys.readouterr().err
    assert invoke(["export", "--state", f"file://{tmp_path / 'nowhere'}"]) == EXIT_FAILED
    assert not (tmp_path / "nowhere").exists()
