"""Credentials from exec plugins and auth providers, and kubeconfigs read as the kubernetes package reads them."""

from __future__ import annotations

import base64
import json
import pathlib
import sys
import tempfile
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
import yaml
from kubernetes import client, config

from kubeapi import plugin_credentials
from kubeapi.config import Access, kubeconfig_access
from kubeapi.errors import ConfigInvalid
from tests.support.certificates import own_certificate

API = "client.authentication.k8s.io/v1"
Plugin = Callable[..., dict[str, Any]]
Write = Callable[..., str]


@pytest.fixture(autouse=True)
def _own_environment(monkeypatch: pytest.MonkeyPatch, tmp_path: pathlib.Path) -> None:
    for name in ("KUBECONFIG", "KUBERNETES_SERVICE_HOST", "HTTPS_PROXY", "https_proxy"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("HOME", str(tmp_path))


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> list[float]:
    """The monotonic clock in seconds, which tests change."""
    now = [1000.0]
    monkeypatch.setattr(plugin_credentials, "monotonic", lambda: now[0])
    return now


@pytest.fixture
def plugin(tmp_path: pathlib.Path) -> Plugin:
    """A function that writes a plugin. Each run prints the next answer, later runs the last one; a file counts runs."""

    def write(*answers: dict[str, Any] | str, **fields: Any) -> dict[str, Any]:
        texts = [
            answer
            if isinstance(answer, str)
            else json.dumps({"apiVersion": API, "kind": "ExecCredential", "status": answer})
            for answer in answers
        ]
        script, runs = tmp_path / "plugin.py", tmp_path / "runs"
        script.write_text(
            "import pathlib, sys\n"
            f"runs = pathlib.Path({str(runs)!r})\n"
            "count = len(runs.read_text()) if runs.exists() else 0\n"
            "runs.write_text('x' * (count + 1))\n"
            f"answer = {texts!r}[min(count, {len(texts) - 1})]\n"
            "if answer.startswith('!'):\n"
            "    sys.exit(answer[1:])\n"
            "print(answer)\n"
        )
        return {"exec": {"apiVersion": API, "command": sys.executable, "args": [str(script)], **fields}}

    return write


@pytest.fixture
def runs(tmp_path: pathlib.Path) -> Callable[[], int]:
    return lambda: len((tmp_path / "runs").read_text())


@pytest.fixture
def write(tmp_path: pathlib.Path) -> Write:
    def _write(user: dict[str, Any], name: str = "config", **cluster: Any) -> str:
        path = tmp_path / name
        document = {
            "current-context": name,
            "contexts": [{"name": name, "context": {"cluster": name, "user": name}}],
            "clusters": [{"name": name, "cluster": {"server": f"https://{name}.example", **cluster}}],
            "users": [{"name": name, "user": user}],
        }
        path.write_text(yaml.safe_dump(document))
        return str(path)

    return _write


def in_future(seconds: float) -> str:
    return (datetime.now(UTC) + timedelta(seconds=seconds)).strftime("%Y-%m-%dT%H:%M:%SZ")


def test_a_plugin_that_fails_is_named_with_its_own_words(write: Write, plugin: Plugin) -> None:
    with pytest.raises(ConfigInvalid, match=r"exec plugin `.*python.*`.*not logged in"):
        kubeconfig_access(write(plugin("!you are not logged in")))


def test_a_plugin_that_is_not_installed_is_named_with_the_hint_of_the_kubeconfig(write: Write) -> None:
    user = {"exec": {"apiVersion": API, "command": "no-such-plugin", "installHint": "get it from IT"}}
    with pytest.raises(ConfigInvalid, match=r"no-such-plugin.*get it from IT"):
        kubeconfig_access(write(user))


@pytest.mark.parametrize("answer", [{}, {"token": ""}, {"clientCertificateData": "x"}, "no json", "3", '{"kind": "x"}'])
def test_a_plugin_without_credentials_is_refused(answer: dict[str, Any] | str, write: Write, plugin: Plugin) -> None:
    """The loader of the kubernetes package continues without credentials, and the API server refuses its requests."""
    with pytest.raises(ConfigInvalid, match="exec plugin"):
        kubeconfig_access(write(plugin(answer)))


@pytest.mark.parametrize("section", [3, [], {"command": "x"}, {"apiVersion": API}, {"apiVersion": API, "command": 3}])
def test_a_section_that_is_no_plugin_is_refused(section: Any, write: Write) -> None:
    with pytest.raises(ConfigInvalid, match=r"kubeconfig .*exec plugin"):
        kubeconfig_access(write({"exec": section}))


def test_of_several_files_the_first_current_context_counts_beside_a_plugin_as_well(
    write: Write, plugin: Plugin, monkeypatch: pytest.MonkeyPatch
) -> None:
    first = write(plugin({"token": "t"}), "first")
    monkeypatch.setenv("KUBECONFIG", f"{first}:{write({'token': 'other'}, 'second')}")
    access = kubeconfig_access()
    assert (access.server, access.authorization()) == ("https://first.example", "Bearer t")


def test_a_token_is_renewed_before_it_expires_and_not_before(
    write: Write, plugin: Plugin, runs: Callable[[], int], clock: list[float]
) -> None:
    access = kubeconfig_access(
        write(plugin({"token": "one", "expirationTimestamp": in_future(3600)}, {"token": "two"}))
    )
    assert [access.authorization() for _ in range(3)] == ["Bearer one"] * 3
    assert runs() == 1
    clock[0] += 3200
    assert access.authorization() == "Bearer one"
    clock[0] += 200
    assert [access.authorization() for _ in range(3)] == ["Bearer two"] * 3
    clock[0] += 10**9
    assert access.authorization() == "Bearer two"
    assert runs() == 2


def test_a_token_that_lives_for_a_minute_is_not_asked_for_with_each_request(
    write: Write, plugin: Plugin, runs: Callable[[], int]
) -> None:
    access = kubeconfig_access(write(plugin({"token": "t", "expirationTimestamp": in_future(60)})))
    assert [access.authorization() for _ in range(5)] == ["Bearer t"] * 5
    assert runs() == 1


def test_a_plugin_that_fails_later_leaves_the_token_until_it_expires(
    write: Write, plugin: Plugin, runs: Callable[[], int], clock: list[float]
) -> None:
    access = kubeconfig_access(write(plugin({"token": "t", "expirationTimestamp": in_future(3600)}, "!away")))
    clock[0] += 3400
    assert [access.authorization() for _ in range(3)] == ["Bearer t"] * 3
    assert runs() == 2, "a plugin that fails is not run with each request"
    clock[0] += 300
    with pytest.raises(ConfigInvalid, match="away"):
        access.authorization()


def test_a_refused_token_is_asked_for_again(write: Write, plugin: Plugin) -> None:
    access = kubeconfig_access(write(plugin({"token": "one"}, {"token": "two"})))
    access.reload()
    assert access.authorization() == "Bearer two"


def test_certificates_of_a_plugin_are_used_and_renewed_and_leave_no_file(
    write: Write, plugin: Plugin, clock: list[float], tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = tmp_path / "temporary"
    folder.mkdir()
    monkeypatch.setattr("tempfile.tempdir", str(folder))

    def certificate(name: str) -> dict[str, str]:
        (tmp_path / name).mkdir()
        certificate, key = _pair(tmp_path / name)
        return {"clientCertificateData": certificate, "clientKeyData": key}

    access = kubeconfig_access(
        write(plugin({**certificate("one"), "expirationTimestamp": in_future(3600)}, certificate("two")))
    )
    assert access.authorization() is None
    assert access.ssl_context() is not None
    before = access.tls_identity()
    assert access.tls_identity() == before
    clock[0] += 3500
    assert access.tls_identity() != before
    assert access.ssl_context() is not None
    assert list(folder.iterdir()) == []


def test_a_plugin_gets_its_environment_and_the_cluster(write: Write, tmp_path: pathlib.Path) -> None:
    script = tmp_path / "plugin.py"
    script.write_text(
        "import json, os\n"
        "cluster = json.loads(os.environ['KUBERNETES_EXEC_INFO'])['spec']['cluster']\n"
        "token = f\"{os.environ['REGION']} {cluster['server']} {cluster['config']['id']}\"\n"
        f"print(json.dumps({{'apiVersion': {API!r}, 'kind': 'ExecCredential', 'status': {{'token': token}}}}))\n"
    )
    section = {
        "apiVersion": API,
        "command": sys.executable,
        "args": ["plugin.py"],
        "env": [{"name": "REGION", "value": "eu"}],
        "provideClusterInfo": True,
    }
    extensions = [{"name": "client.authentication.k8s.io/exec", "extension": {"id": 7}}]
    access = kubeconfig_access(write({"exec": section}, extensions=extensions))
    assert access.authorization() == "Bearer eu https://config.example 7"


def test_an_oidc_token_that_holds_is_used(write: Write) -> None:
    claims = base64.urlsafe_b64encode(b'{"exp": 99999999999}').decode().rstrip("=")
    provider = {"name": "oidc", "config": {"id-token": f"a.{claims}.c"}}
    assert kubeconfig_access(write({"auth-provider": provider})).authorization() == f"Bearer a.{claims}.c"


@pytest.mark.parametrize(
    "provider", [{"name": "azure", "config": {}}, {"name": "oidc"}, {"name": "oidc", "config": {}}, 3]
)
def test_an_auth_provider_without_credentials_is_refused(provider: Any, write: Write) -> None:
    with pytest.raises(ConfigInvalid, match="config"):
        kubeconfig_access(write({"auth-provider": provider}))


def by_package(path: str) -> Any:
    found = client.Configuration()
    config.load_kube_config(path, client_configuration=found, persist_config=False)
    return found


def _pair(folder: pathlib.Path) -> tuple[str, str]:
    """Make a certificate; return it and its key in PEM."""
    both = own_certificate(folder).read_text()
    return (folder / "ca.crt").read_text(), both[: both.index("-----BEGIN CERTIFICATE")]


def _encoded(text: str) -> str:
    return base64.b64encode(text.encode()).decode()


with tempfile.TemporaryDirectory() as _folder:
    _CERTIFICATE, _KEY = _pair(pathlib.Path(_folder))


@pytest.mark.parametrize(
    ("user", "cluster"),
    [
        ({"token": "t"}, {}),
        ({"username": "ann", "password": "pw"}, {"proxy-url": "http://proxy.example:8080"}),
        ({"client-certificate-data": _encoded(_CERTIFICATE), "client-key-data": _encoded(_KEY)}, {}),
        ({"client-certificate": "a.crt", "client-key": "a.key"}, {"certificate-authority": "a.crt"}),
        ({}, {"certificate-authority-data": _encoded(_CERTIFICATE), "tls-server-name": "kube"}),
        ({"token": "t"}, {"insecure-skip-tls-verify": True}),
    ],
)
def test_a_kubeconfig_says_what_the_package_reads_from_it(
    user: dict[str, Any], cluster: dict[str, Any], write: Write, tmp_path: pathlib.Path
) -> None:
    (tmp_path / "a.crt").write_text(_CERTIFICATE)
    (tmp_path / "a.key").write_text(_KEY)
    path = write(user, **cluster)
    access, package = kubeconfig_access(path), by_package(path)
    assert access.server == package.host
    assert access.authorization() == package.get_api_key_with_prefix("BearerToken")
    assert access.tls_server_name == package.tls_server_name
    assert access.proxy == package.proxy
    assert _tls_of(access) == (
        _text(package.ssl_ca_cert),
        _text(package.cert_file),
        _text(package.key_file),
        package.verify_ssl,
    )


def _tls_of(access: Access) -> tuple[str | None, str | None, str | None, bool]:
    endpoint = access._endpoint
    return (
        endpoint.ca_data or _text(endpoint.ca_file),
        endpoint.cert_data or _text(endpoint.cert_file),
        endpoint.key_data or _text(endpoint.key_file),
        endpoint.verify,
    )


def _text(file: str | None) -> str | None:
    return pathlib.Path(file).read_text() if file else None
