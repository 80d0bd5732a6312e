"""Values of secret variables: which files of a host are accepted, and the message if none is."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path

import pytest

from agent.contract import ProcessPlan, SecretReference
from agent.processes.command_line import launch_hash
from agent.processes.secret_values import MAX_BYTES, SecretUnavailable, SecretValues
from agent.server.processes.process import inherited_environment

PLAIN = ProcessPlan(host="h", service="s", argv=("x",), service_name="s")


def plan(secret: str = "hub", key: str = "token", *, optional: bool | None = None) -> ProcessPlan:
    reference = SecretReference(secret=secret, key=key, optional=optional)
    return PLAIN.model_copy(update={"secret_env": {"HF_TOKEN": reference}})


def put(folder: Path, content: bytes = b"hf_1\n", *, secret: str = "hub", key: str = "token") -> Path:
    file = folder / "ns" / secret / key
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_bytes(content)
    file.chmod(0o600)
    return file


def values(folder: Path) -> SecretValues:
    return SecretValues.of_agent(folder, host="mac", client=None)


def look_up(folder: Path, wanted: ProcessPlan | None = None) -> dict[str, str]:
    return values(folder).of("ns/s", wanted or plan())


def test_a_file_of_the_hosts_owner_has_the_value(tmp_path: Path) -> None:
    put(tmp_path)
    assert look_up(tmp_path) == {"HF_TOKEN": "hf_1"}
    assert look_up(tmp_path, PLAIN) == {}


def test_a_file_of_another_namespace_does_not_count(tmp_path: Path) -> None:
    put(tmp_path)
    with pytest.raises(SecretUnavailable):
        values(tmp_path).of("other/s", plan())


def test_what_is_missing_is_named_with_the_field_and_the_file(tmp_path: Path) -> None:
    with pytest.raises(SecretUnavailable) as missing:
        look_up(tmp_path)
    assert "env[HF_TOKEN].valueFrom.secretKeyRef" in str(missing.value)
    assert str(tmp_path / "ns" / "hub" / "token") in str(missing.value)
    assert look_up(tmp_path, plan(optional=True)) == {}


def linked_file(folder: Path) -> None:
    put(folder).rename(folder / "elsewhere")
    (folder / "ns" / "hub" / "token").symlink_to(folder / "elsewhere")


def linked_folder(folder: Path) -> None:
    put(folder)
    (folder / "ns" / "hub").rename(folder / "elsewhere")
    (folder / "ns" / "hub").symlink_to(folder / "elsewhere")


def fifo(folder: Path) -> None:
    put(folder).unlink()
    os.mkfifo(folder / "ns" / "hub" / "token", 0o600)


@pytest.mark.parametrize(
    "spoil",
    [
        lambda folder: put(folder).chmod(0o640),
        lambda folder: put(folder).chmod(0o604),
        lambda folder: put(folder).parent.chmod(0o777),
        lambda folder: put(folder).parents[1].chmod(0o770),
        lambda folder: os.link(put(folder), folder / "second"),
        lambda folder: put(folder, b"a\0b"),
        lambda folder: put(folder, b"\xff\xfe"),
        lambda folder: put(folder, b"x" * (MAX_BYTES + 1)),
        lambda folder: (folder / "ns" / "hub" / "token").mkdir(parents=True),
        linked_file,
        linked_folder,
        fifo,
    ],
)
def test_a_file_that_is_not_the_owners_alone_is_refused(tmp_path: Path, spoil: Callable[[Path], object]) -> None:
    spoil(tmp_path)
    for optional in (None, True):
        with pytest.raises(SecretUnavailable) as refused:
            look_up(tmp_path, plan(optional=optional))
        assert "hf_1" not in str(refused.value)


@pytest.mark.skipif(os.geteuid() != 0, reason="only root gives files away; run as root")
def test_a_file_of_another_user_is_refused(tmp_path: Path) -> None:
    os.chown(put(tmp_path), 65534, 65534)
    with pytest.raises(SecretUnavailable, match="belongs neither"):
        look_up(tmp_path)


@pytest.mark.parametrize(
    ("secret", "key"), [("..", "token"), ("hub", ".."), ("hub", "../hub/token"), ("/etc", "x"), ("", "x")]
)
def test_names_that_leave_their_folder_are_refused(tmp_path: Path, secret: str, key: str) -> None:
    put(tmp_path)
    with pytest.raises(SecretUnavailable, match="is not a namespace, Secret and key"):
        look_up(tmp_path, plan(secret, key))


def test_a_reference_changes_the_launch_and_no_plan_without_one_does() -> None:
    assert launch_hash(PLAIN, "10.0.0.1") == "22c8a00b01fe812e"
    assert launch_hash(plan(), "10.0.0.1") != launch_hash(PLAIN, "10.0.0.1")
    assert launch_hash(plan(key="other"), "10.0.0.1") != launch_hash(plan(), "10.0.0.1")


def test_a_process_does_not_inherit_the_agents_credentials() -> None:
    secret = (
        *("HF_TOKEN", "HUGGING_FACE_HUB_TOKEN", "AWS_SECRET_ACCESS_KEY", "OPENAI_API_KEY", "GH_TOKEN", "db_password"),
        *("GOOGLE_APPLICATION_CREDENTIALS", "KUBECONFIG", "MY_SECRET"),
    )
    plain = (
        "PATH",
        "CUDA_VISIBLE_DEVICES",
        "HF_HOME",
        "TOKENIZERS_PARALLELISM",
        "OMP_NUM_THREADS",
        "LLAMA_ARG_N_PREDICT",
    )
    seen = inherited_environment(dict.fromkeys((*secret, *plain), "1"))
    assert set(seen) == set(plain)
