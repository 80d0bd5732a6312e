"""The folder of local mode is read so that a broken file or document is a problem of its own services only."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from agent.contract import ProcessPlan
from automation.local.documents import FolderUnreadable, LocalFolder, LocalService, read_files, read_folder
from program.desired.keys import ServiceKey
from tests.support.local_mode import both, model, service

KEY = ServiceKey("llmkube", "default", "chat")


def one(folder: LocalFolder, key: ServiceKey = KEY) -> LocalService:
    return folder.services[key]


def plan_of(read: LocalService) -> ProcessPlan:
    assert read.rendered is not None, read.problem
    (process,) = read.rendered.objects
    return ProcessPlan.model_validate(process.manifest["spec"])


def test_a_document_of_a_cluster_becomes_a_process_that_loads_on_request() -> None:
    plan = plan_of(one(read_folder({"chat.yaml": both("chat")}, {})))
    assert plan.host == "local"
    assert (plan.residency, plan.group, plan.idle_timeout_s) == ("onDemand", "local", 300)
    assert plan.file is not None
    assert plan.file.source == "file:///models/chat.gguf"


def test_settings_of_the_document_come_before_the_defaults_but_for_those_that_choose_a_host() -> None:
    annotations = {
        "herdsman.dev/idle-timeout": "1m",
        "herdsman.dev/residency": "preferred",
        "herdsman.dev/model-group": "mine",
        "herdsman.dev/host": "mac-mini",
        "herdsman.dev/host-selector": "gpu=yes",
    }
    text = f"{model('chat')}---\n{service('chat', annotations=annotations)}"
    plan = plan_of(one(read_folder({"chat.yaml": text}, {})))
    assert (plan.host, plan.residency, plan.group, plan.idle_timeout_s) == ("local", "preferred", "mine", 60)


def test_a_pinned_service_stays_loaded() -> None:
    annotations = {"herdsman.dev/residency": "pinned", "herdsman.dev/model-group": "mine"}
    text = f"{model('chat')}---\n{service('chat', annotations=annotations)}"
    assert plan_of(one(read_folder({"chat.yaml": text}, {}))).idle_timeout_s is None


def test_one_machine_runs_one_replica_and_a_suspended_service_none() -> None:
    several = one(read_folder({"a.yaml": f"{model('chat')}---\n{service('chat', replicas=3)}"}, {}))
    assert plan_of(several).replica is None
    stopped = one(read_folder({"a.yaml": f"{model('chat')}---\n{service('chat', suspend=True)}"}, {}))
    assert stopped.rendered is not None
    assert stopped.rendered.objects == ()


@pytest.mark.parametrize(
    "text", ["kind: [never closed", "just words", "- a\n- list\n", both("other").replace("name: other", "name: ../x")]
)
def test_a_broken_file_stops_no_other_service(text: str) -> None:
    folder = read_folder({"broken.yaml": text, "chat.yaml": both("chat")}, {})
    assert list(folder.broken) == ["broken.yaml"]
    assert plan_of(one(folder))
    assert [key.name for key in folder.services if ".." in key.name or "/" in key.name] == []


def test_an_invalid_document_says_what_is_wrong_and_stops_no_other_service() -> None:
    text = f"{both('chat')}---\n{model('bad')}---\n{service('bad', contextSize='many')}"
    folder = read_folder({"all.yaml": text}, {})
    assert plan_of(one(folder))
    assert "contextSize" in one(folder, KEY._replace(name="bad")).problem


def test_a_service_without_its_model_names_it() -> None:
    assert "no Model `chat`" in one(read_folder({"chat.yaml": service("chat")}, {})).problem


def test_an_invalid_model_is_the_problem_of_its_services() -> None:
    text = f"{model('chat', source='ftp://models/chat.gguf')}---\n{service('chat')}"
    assert "spec.source" in one(read_folder({"chat.yaml": text}, {})).problem


def test_a_second_document_of_the_same_name_is_a_problem_of_its_file() -> None:
    folder = read_folder({"a.yaml": both("chat"), "b.yaml": both("chat")}, {})
    assert list(folder.broken) == ["b.yaml"]
    assert plan_of(one(folder))


def test_only_a_change_of_a_service_or_its_model_changes_its_hash() -> None:
    first = one(read_folder({"chat.yaml": both("chat")}, {})).spec_hash
    assert one(read_folder({"chat.yaml": both("chat"), "x.yaml": both("other")}, {})).spec_hash == first
    assert one(read_folder({"chat.yaml": both("chat", path="/models/new.gguf")}, {})).spec_hash != first


# --- files ------------------------------------------------------------------------------------------------------------


def test_a_folder_that_does_not_exist_is_empty(tmp_path: Path) -> None:
    assert read_files(tmp_path / "none") == ({}, {})


def test_a_folder_that_cannot_be_listed_is_not_empty(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(FolderUnreadable, match="cannot list"):
        read_files(tmp_path / "file")


def test_hidden_files_and_other_suffixes_are_left_out(tmp_path: Path) -> None:
    for name in (".chat.yaml.swp", ".chat.yaml", "notes.txt", "chat.yaml", "more.yml"):
        (tmp_path / name).write_text("{}")
    assert list(read_files(tmp_path)[0]) == ["chat.yaml", "more.yml"]


def test_a_file_that_is_no_text_and_a_link_to_nothing_are_broken(tmp_path: Path) -> None:
    (tmp_path / "chat.yaml").write_bytes(b"\xff\xfe\x00")
    os.symlink(tmp_path / "away.yaml", tmp_path / "link.yaml")
    texts, broken = read_files(tmp_path)
    assert texts == {}
    assert sorted(broken) == ["chat.yaml", "link.yaml"]
