"""Settings: defaults, environment variables, and refused values."""

from __future__ import annotations

import pathlib

import pytest
from pydantic import ValidationError

from automation.settings import Settings


@pytest.fixture(autouse=True)
def _own_environment(monkeypatch: pytest.MonkeyPatch, tmp_path: pathlib.Path) -> None:
    import os

    for name in [name for name in os.environ if name.startswith("HERDSMAN_")]:
        monkeypatch.delenv(name)
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path))


def test_defaults_are_the_peers_where_it_has_them(tmp_path: pathlib.Path) -> None:
    settings = Settings()
    assert settings.state == f"file://{tmp_path}/herdsman/state"
    assert settings.work_directory == tmp_path / "herdsman" / "state" / "work"
    assert (settings.model_cache_size, settings.model_cache_access_mode) == ("100Gi", "ReadWriteOnce")
    assert (settings.model_cache_storage_class, settings.ca_cert_configmap) == ("", "")
    assert (settings.default_fsgroup, settings.init_container_image) == (102, "docker.io/curlimages/curl:8.18.0")
    assert (settings.workers, settings.engine_parallelism, settings.engine_timeout_s) == (4, 2, 600.0)
    assert settings.leader_elect
    assert settings.namespaces == ()
    assert settings.health_address == "127.0.0.1"


def test_the_environment_is_read_and_a_flag_beats_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HERDSMAN_WORKERS", "7")
    monkeypatch.setenv("HERDSMAN_LEADER_ELECT", "false")
    monkeypatch.setenv("HERDSMAN_NAMESPACES", "a, b,,a")
    assert Settings().workers == 7
    assert not Settings().leader_elect
    assert Settings().namespaces == ("a", "b")
    assert Settings(workers=2).workers == 2
    monkeypatch.delenv("HERDSMAN_WORKERS")
    monkeypatch.setenv("herdsman_workers", "9")
    monkeypatch.setenv("HERDSMAN_UNKNOWN", "ignored")
    assert Settings().workers == 9


def test_an_invalid_environment_variable_is_refused_by_the_name_of_its_setting(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HERDSMAN_WORKERS", "many")
    with pytest.raises(ValidationError) as refused:
        Settings()
    assert refused.value.errors()[0]["loc"] == ("workers",)


@pytest.mark.parametrize("given", ["a,b", ["a", "b"], ("a,b",), ["a", "b", "a"]])
def test_lists_may_be_written_with_commas_or_repeated(given: object) -> None:
    assert Settings(allowed_remote_hosts=given).allowed_remote_hosts == ("a", "b")


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("state", "/var/lib/state"),
        ("workers", 0),
        ("health_port", 70000),
        ("engine_timeout_s", 0),
        ("model_cache_access_mode", "ReadWriteSometimes"),
        ("log_format", "xml"),
    ],
)
def test_what_makes_no_sense_is_refused_by_name(field: str, value: object) -> None:
    with pytest.raises(ValidationError) as refused:
        Settings(**{field: value})
    assert refused.value.errors()[0]["loc"] == (field,)


@pytest.mark.parametrize("address", ["127.0.0.1", "::1", "0.0.0.0", "169.254.0.1", "herdsman.example", "10.0.0"])
def test_an_address_that_pods_cannot_reach_is_refused(address: str) -> None:
    with pytest.raises(ValidationError, match="proxy_address"):
        Settings(proxy_address=address)
    assert Settings(proxy_address="10.0.0.7").proxy_address == "10.0.0.7"
