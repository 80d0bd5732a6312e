"""Kubeconfigs and the pod's service account."""

from __future__ import annotations

import pathlib
import sys
from collections.abc import Callable
from typing import Any

import pytest
import yaml

from kubeapi.config import default_access, in_cluster_access, kubeconfig_access
from kubeapi.errors import ConfigInvalid

Write = Callable[..., str]


@pytest.fixture(autouse=True)
def _own_environment(monkeypatch: pytest.MonkeyPatch, tmp_path: pathlib.Path) -> None:
    for name in ("KUBECONFIG", "KUBERNETES_SERVICE_HOST", "KUBERNETES_SERVICE_PORT", "HTTPS_PROXY", "https_proxy"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("HOME", str(tmp_path))


@pytest.fixture
def write(tmp_path: pathlib.Path) -> Write:
    def _write(name: str = "config", *, user: dict[str, Any] | None = None, **cluster: Any) -> str:
        path = tmp_path / name
        path.parent.mkdir(parents=True, exist_ok=True)
        document = {
            "apiVersion": "v1",
            "kind": "Config",
            "current-context": "main",
            "contexts": [
                {"name": "main", "context": {"cluster": "c", "user": "u"}},
                {"name": "other", "context": {"cluster": "elsewhere", "user": "u"}},
            ],
            "clusters": [
                {"name": "c", "cluster": {"server": "https://127.0.0.1:6443", **cluster}},
                {"name": "elsewhere", "cluster": {"server": "https://kube.example:443/prefix/"}},
            ],
            "users": [{"name": "u", "user": {"token": "t0ken"} if user is None else user}],
        }
        path.write_text(yaml.safe_dump(document))
        return str(path)

    return _write


def test_the_current_context_holds_unless_another_is_named(write: Write) -> None:
    path = write()
    assert kubeconfig_access(path).server == "https://127.0.0.1:6443"
    assert kubeconfig_access(path, "other").server == "https://kube.example:443/prefix"
    assert kubeconfig_access(path).authorization() == "Bearer t0ken"


def test_an_unknown_context_is_named_in_the_error(write: Write) -> None:
    with pytest.raises(ConfigInvalid, match="'nowhere'"):
        kubeconfig_access(write(), "nowhere")


@pytest.mark.parametrize("text", ["", "- 1", "{", "contexts: 3", "current-context: x", "just words"])
def test_a_file_that_is_no_kubeconfig_is_refused(tmp_path: pathlib.Path, text: str) -> None:
    (tmp_path / "broken").write_text(text)
    with pytest.raises(ConfigInvalid, match="broken"):
        kubeconfig_access(str(tmp_path / "broken"))


def test_a_missing_file_is_refused(tmp_path: pathlib.Path) -> None:
    with pytest.raises(ConfigInvalid, match="absent"):
        kubeconfig_access(str(tmp_path / "absent"))


def test_certificates_that_cannot_be_loaded_are_refused(write: Write, tmp_path: pathlib.Path) -> None:
    (tmp_path / "ca.crt").write_text("no certificate")
    with pytest.raises(ConfigInvalid, match="certificates"):
        kubeconfig_access(write(**{"certificate-authority": "ca.crt"})).ssl_context()


def test_paths_in_a_kubeconfig_are_relative_to_it(write: Write, tmp_path: pathlib.Path) -> None:
    (tmp_path / "sub").mkdir()
    (tmp_path / "sub" / "token").write_text("from-file\n")
    access = kubeconfig_access(write("sub/config", user={"tokenFile": "token"}))
    assert access.authorization() == "Bearer from-file"


def test_a_token_file_is_read_again_after_reload(write: Write, tmp_path: pathlib.Path) -> None:
    (tmp_path / "token").write_text("one")
    access = kubeconfig_access(write(user={"tokenFile": "token"}))
    assert access.authorization() == "Bearer one"
    (tmp_path / "token").write_text("two")
    access.reload()
    assert access.authorization() == "Bearer two"


def test_a_password_becomes_basic_authorization(write: Write) -> None:
    access = kubeconfig_access(write(user={"username": "ann", "password": "pw"}))
    assert access.authorization() == "Basic YW5uOnB3"


def test_an_exec_plugin_is_run_for_its_token(write: Write, tmp_path: pathlib.Path) -> None:
    plugin = tmp_path / "plugin.py"
    plugin.write_text(
        'print(\'{"apiVersion": "client.authentication.k8s.io/v1", "kind": "ExecCredential",'
        ' "status": {"token": "from-plugin"}}\')\n'
    )
    user = {
        "exec": {
            "apiVersion": "client.authentication.k8s.io/v1",
            "command": sys.executable,
            "args": [str(plugin)],
            "interactiveMode": "Never",
        }
    }
    access = kubeconfig_access(write(user=user))
    assert access.server == "https://127.0.0.1:6443"
    assert access.authorization() == "Bearer from-plugin"


def test_several_files_are_merged(write: Write, tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "extra").write_text(
        yaml.safe_dump(
            {
                "contexts": [{"name": "third", "context": {"cluster": "c3", "user": "u"}}],
                "clusters": [{"name": "c3", "cluster": {"server": "https://third.example"}}],
            }
        )
    )
    monkeypatch.setenv("KUBECONFIG", f"{write()}:{tmp_path / 'extra'}:{tmp_path / 'absent'}")
    assert kubeconfig_access(None, "third").server == "https://third.example"
    assert kubeconfig_access().server == "https://127.0.0.1:6443"


def test_a_proxy_of_the_environment_is_not_used_for_loopback(write: Write, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HTTPS_PROXY", "http://proxy.example:3128")
    path = write()
    assert kubeconfig_access(path).proxy is None
    assert kubeconfig_access(path, "other").proxy == "http://proxy.example:3128"
    monkeypatch.setenv("NO_PROXY", ".example")
    assert kubeconfig_access(path, "other").proxy is None


def test_a_proxy_of_the_kubeconfig_is_always_used(write: Write) -> None:
    assert kubeconfig_access(write(**{"proxy-url": "http://127.0.0.1:3128"})).proxy == "http://127.0.0.1:3128"


def test_verification_is_on_unless_switched_off(write: Write) -> None:
    import ssl

    strict = kubeconfig_access(write()).ssl_context()
    loose = kubeconfig_access(write(**{"insecure-skip-tls-verify": True})).ssl_context()
    assert strict is not None
    assert (strict.verify_mode, strict.check_hostname) == (ssl.CERT_REQUIRED, True)
    assert loose is not None
    assert loose.verify_mode == ssl.CERT_NONE


def test_outside_a_pod_there_is_no_in_cluster_access() -> None:
    with pytest.raises(ConfigInvalid, match="KUBERNETES_SERVICE_HOST"):
        in_cluster_access()


def test_the_service_account_is_used_inside_a_pod(monkeypatch: pytest.MonkeyPatch, tmp_path: pathlib.Path) -> None:
    monkeypatch.setenv("KUBERNETES_SERVICE_HOST", "fd00::1")
    monkeypatch.setenv("KUBERNETES_SERVICE_PORT", "443")
    with pytest.raises(ConfigInvalid, match="token"):
        in_cluster_access(tmp_path)
    (tmp_path / "token").write_text("pod-token")
    access = in_cluster_access(tmp_path)
    assert (access.server, access.authorization()) == ("https://[fd00::1]:443", "Bearer pod-token")


def test_kubeconfig_comes_before_the_pod_and_home_last(write: Write, monkeypatch: pytest.MonkeyPatch) -> None:
    write(".kube/config", server="https://home.example")
    assert default_access().server == "https://home.example"
    monkeypatch.setenv("KUBERNETES_SERVICE_HOST", "10.0.0.1")
    monkeypatch.setenv("KUBECONFIG", write("env", server="https://env.example"))
    assert default_access().server == "https://env.example"
    assert default_access(write("flag", server="https://flag.example")).server == "https://flag.example"


def test_a_token_file_goes_before_a_token_which_stands_in_while_the_file_is_away(
    write: Write, tmp_path: pathlib.Path
) -> None:
    """As in client-go, the last token that was read from the file takes precedence."""
    path = write(user={"token": "given", "tokenFile": "token"})
    assert kubeconfig_access(path).authorization() == "Bearer given"
    (tmp_path / "token").write_text("")
    assert kubeconfig_access(path).authorization() == "Bearer given"
    (tmp_path / "token").write_text("from-file\n")
    access = kubeconfig_access(path)
    assert access.authorization() == "Bearer from-file"


def test_a_token_file_alone_must_be_there(write: Write) -> None:
    with pytest.raises(ConfigInvalid, match="token"):
        kubeconfig_access(write(user={"tokenFile": "token"})).authorization()


ACTING = {
    "token": "t",
    "as": "ann@example.com",
    "as-uid": "u-1",
    "as-groups": ["dev", "ops"],
    "as-user-extra": {"example.com/Scopes": ["view", "edit"]},
}
HEADERS = [
    ("Impersonate-User", "ann@example.com"),
    ("Impersonate-Uid", "u-1"),
    ("Impersonate-Group", "dev"),
    ("Impersonate-Group", "ops"),
    ("Impersonate-Extra-example.com%2Fscopes", "view"),
    ("Impersonate-Extra-example.com%2Fscopes", "edit"),
]


def test_whom_to_act_as_is_read(write: Write) -> None:
    assert list(kubeconfig_access(write(user=ACTING)).impersonation) == HEADERS
    assert kubeconfig_access(write()).impersonation == ()


def test_whom_to_act_as_is_read_beside_an_exec_plugin_and_in_merged_files(
    write: Write, tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    plugin = {"apiVersion": "client.authentication.k8s.io/v1", "command": "false", "interactiveMode": "Never"}
    token = 'echo \'{"apiVersion":"client.authentication.k8s.io/v1","kind":"ExecCredential","status":{"token":"p"}}\''
    user = {**ACTING, "exec": {**plugin, "command": "sh", "args": ["-c", token]}}
    del user["token"]
    access = kubeconfig_access(write(user=user))
    assert (access.authorization(), list(access.impersonation)) == ("Bearer p", HEADERS)
    second = tmp_path / "second"
    second.write_text(yaml.safe_dump({"users": [{"name": "u", "user": {"token": "other"}}]}))
    monkeypatch.setenv("KUBECONFIG", f"{write(user=ACTING)}:{second}")
    assert list(kubeconfig_access().impersonation) == HEADERS
    assert kubeconfig_access().authorization() == "Bearer t"


@pytest.mark.parametrize(
    "user",
    [
        {"as-groups": ["system:masters"]},
        {"as-uid": "1"},
        {"as-user-extra": {"a": ["b"]}},
        {"as": "ann\r\nX-Other: 1"},
        {"as": "ann", "as-groups": "dev"},
        {"as": "ann", "as-user-extra": {"a": "b"}},
    ],
)
def test_an_identity_that_makes_no_sense_is_refused(write: Write, user: dict[str, Any]) -> None:
    with pytest.raises(ConfigInvalid, match=r"as-|Impersonate-User"):
        kubeconfig_access(write(user={"token": "t", **user}))


def test_paths_of_merged_files_are_relative_to_their_own_file(
    write: Write, tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "one").mkdir()
    (tmp_path / "one" / "token").write_text("of-one")
    one = write("one/config", user={"tokenFile": "token"})
    monkeypatch.setenv("KUBECONFIG", f"{one}:{write('two/config')}")
    assert kubeconfig_access().authorization() == "Bearer of-one"


def test_renewed_credentials_are_not_sent_to_another_server(write: Write) -> None:
    path = write()
    access = kubeconfig_access(path)
    write(server="https://evil.example", user={"token": "new"})
    with pytest.raises(ConfigInvalid, match=r"now names server https://evil\.example"):
        access.reload()
    assert access.authorization() == "Bearer t0ken"


def test_a_renewed_certificate_is_another_identity(write: Write, tmp_path: pathlib.Path) -> None:
    for name in ("cert", "key"):
        (tmp_path / name).write_text("one")
    access = kubeconfig_access(write(user={"client-certificate": "cert", "client-key": "key"}))
    before = access.tls_identity()
    assert access.tls_identity() == before
    (tmp_path / "cert").write_text("two")
    assert access.tls_identity() != before
