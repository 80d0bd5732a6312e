"""`herdsman key` and a gateway as a process, on a real API server: keys work, and stop to work, within seconds."""

from __future__ import annotations

import base64
import json
import subprocess
import sys
import urllib.error
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from automation.cli.main import invoke
from kubeapi import kinds
from kubeapi.client import KubeClient
from tests.support.loop import eventually
from tests.support.supervising import free_port


class Running:
    """A gateway, and the texts that it and the commands have printed."""

    def __init__(self, process: subprocess.Popen[bytes], port: int, log: Path) -> None:
        self.process = process
        self.port = port
        self.log = log

    def models(self, **headers: str) -> int:
        """The status of `GET /v1/models`; 0 while the gateway does not listen."""
        sent = {name.replace("_", "-"): value for name, value in headers.items()}
        request = urllib.request.Request(f"http://127.0.0.1:{self.port}/v1/models", headers=sent)
        try:
            with urllib.request.urlopen(request, timeout=10) as answer:
                return int(answer.status)
        except urllib.error.HTTPError as error:
            return error.code
        except OSError:
            return 0


@pytest.fixture
def gateway(kubeconfig: Path, namespace: str, tmp_path: Path) -> Iterator[Running]:
    port, log = free_port(), tmp_path / "gateway.log"
    command = [sys.executable, "-m", "automation.cli", "gateway", "--listen", f"127.0.0.1:{port}"]
    command += ["-n", namespace, "--keys-namespace", namespace, "--kubeconfig", str(kubeconfig)]
    with log.open("wb") as out:
        process = subprocess.Popen(command, stdout=out, stderr=subprocess.STDOUT)
    try:
        yield Running(process, port, log)
    finally:
        process.terminate()
        process.wait(20)


def key_command(kubeconfig: Path, namespace: str, *arguments: str) -> int:
    return invoke(["key", *arguments, "--keys-namespace", namespace, "--kubeconfig", str(kubeconfig)])


def test_a_key_works_within_seconds_until_it_is_revoked(
    gateway: Running, kubeconfig: Path, namespace: str, capsys: pytest.CaptureFixture[str]
) -> None:
    eventually(lambda: gateway.models() == 200, what="the gateway to serve without keys")

    assert key_command(kubeconfig, namespace, "create", "ci", "--team", "ml", "--expires", "90d") == 0
    text = capsys.readouterr().out.strip()
    assert text.startswith("hd-")
    eventually(lambda: gateway.models() == 401, what="keys to be required")
    assert gateway.models(Authorization=f"Bearer {text}") == 200
    assert gateway.models(x_api_key=text) == gateway.models(api_key=text) == 200

    assert key_command(kubeconfig, namespace, "create", "ci") == 1
    limits = ("--rpm=60", "--tpm=9000", "--budget-tokens=1000000", "--budget-usd=2.5", "--budget-window=30d")
    assert key_command(kubeconfig, namespace, "create", "second", "--model", "prod/*", *limits, "-o", "json") == 0
    printed = capsys.readouterr()
    second = json.loads(printed.out)
    assert (second["name"], second["models"], second["expires"]) == ("second", ["prod/*"], None)
    assert second["limits"] == ["60 requests/m", "9000 tokens/m", "1000000 tokens/30d", "2.5 USD/30d"]
    assert "a key named `ci` exists" in printed.err

    assert key_command(kubeconfig, namespace, "list") == 0
    listed = capsys.readouterr().out
    assert [line.split()[:1] for line in listed.splitlines()] == [["NAME"], ["ci"], ["second"]]
    assert key_command(kubeconfig, namespace, "list", "-o", "json") == 0
    as_json = capsys.readouterr().out
    assert {each["name"]: each["state"] for each in json.loads(as_json)} == {"ci": "ok", "second": "ok"}

    assert key_command(kubeconfig, namespace, "revoke", "ci") == 0
    eventually(lambda: gateway.models(api_key=text) == 401, what="the revoked key to be refused")
    eventually(lambda: gateway.models(api_key=second["key"]) == 200, what="the other key to work")
    assert key_command(kubeconfig, namespace, "revoke", "ci") == 1
    assert "no key in namespace" in capsys.readouterr().err

    with_secrets = listed + as_json + gateway.log.read_text() + everything_but_secrets(kubeconfig, namespace)
    with_secrets += Path(f"/proc/{gateway.process.pid}/cmdline").read_text()
    for secret in (text, second["key"]):
        assert secret.rpartition("-")[2] not in with_secrets
    for hashed in hashes(kubeconfig, namespace):
        assert hashed not in with_secrets


def hashes(kubeconfig: Path, namespace: str) -> list[str]:
    client = KubeClient.from_kubeconfig(str(kubeconfig))
    found: list[dict[str, Any]] = client.list(kinds.SECRETS, namespace)["items"]
    client.close()
    assert found
    return [base64.b64decode(each["data"]["sha256"]).decode() for each in found]


def everything_but_secrets(kubeconfig: Path, namespace: str) -> str:
    client = KubeClient.from_kubeconfig(str(kubeconfig))
    text = json.dumps([client.list(kind, namespace) for kind in (kinds.EVENTS, kinds.CONFIG_MAPS)])
    client.close()
    return text
