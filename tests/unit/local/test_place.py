"""This machine as a place of the everyday commands: they change files, and read what the instance made of them."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from automation.local.applied import Applied
from automation.local.applying import record
from automation.local.documents import read_files, read_folder
from automation.local.folders import LocalFolders
from automation.local.place import LocalPlace, find_local_place
from automation.places.place import NoSuchService, PlaceError, ServiceState, State
from tests.support.local_mode import both, model_document, service, service_document


@pytest.fixture
def place(folders: LocalFolders) -> LocalPlace:
    return LocalPlace(folders)


def applied(folders: LocalFolders) -> None:
    """Record the folder as applied."""
    folder = read_folder(*read_files(folders.config))
    record(folder, Applied.read(folders.applied), {}, "").write(folders.applied)


def deploy(place: LocalPlace, name: str = "chat") -> ServiceState:
    place.apply([model_document(name), service_document(name)])
    return place.find(name)


def test_documents_become_a_private_file_and_a_service(place: LocalPlace, folders: LocalFolders) -> None:
    made = deploy(place)
    assert os.listdir(folders.config) == ["chat.yaml"]
    assert (folders.config / "chat.yaml").stat().st_mode & 0o777 == 0o600
    assert (made.name, made.namespace, made.model, made.kind) == ("chat", "default", "chat", "")
    assert made.is_current is False
    applied(folders)
    assert place.find("chat").is_current
    assert place.document("Model", "chat", "default") == model_document("chat")
    assert place.document("Model", "none", "default") is None


def test_the_context_is_that_of_the_engine(place: LocalPlace, folders: LocalFolders) -> None:
    place.apply([model_document("chat"), service_document("chat", contextSize=512)])
    applied(folders)
    assert place.find("chat").context_size == 512


def test_a_second_apply_keeps_fields_that_it_does_not_name(place: LocalPlace, folders: LocalFolders) -> None:
    deploy(place)
    place.scale(place.find("chat"), 2)
    before = (folders.config / "chat.yaml").stat().st_ino
    deploy(place)
    assert (folders.config / "chat.yaml").stat().st_ino == before
    assert place.find("chat").document["spec"]["replicas"] == 2


def test_a_plan_says_what_would_change_and_changes_nothing(place: LocalPlace, folders: LocalFolders) -> None:
    documents = [model_document("chat"), service_document("chat", contextSize=512)]
    planned = place.plan(documents)
    assert planned.has_changes
    assert "InferenceService default/chat: would be created" in planned.text
    assert os.listdir(folders.config) == []
    place.apply(documents)
    assert not place.plan(documents).has_changes
    assert "contextSize" in place.plan([service_document("chat", contextSize=1024)]).text


def test_a_dry_run_names_the_files_that_would_change_and_leaves_them(folders: LocalFolders) -> None:
    there = deploy(LocalPlace(folders))
    applied(folders)
    before = (folders.config / "chat.yaml").read_bytes()
    changes: list[str] = []
    dry = LocalPlace(folders, changes)
    dry.apply([model_document("chat"), service_document("chat")])
    assert changes == []
    dry.scale(there, 2)
    dry.stop(there)
    assert set(changes) == {f"change {folders.config / 'chat.yaml'}"}
    del changes[:]
    dry.delete(there, purge=True)
    assert changes == [
        f"delete {folders.config / 'chat.yaml'}",
        "delete the files of default/chat that no other service has",
    ]
    dry.apply([model_document("new"), service_document("new")])
    assert changes[-1] == f"change {folders.config / 'new.yaml'}"
    assert os.listdir(folders.config) == ["chat.yaml"] and (folders.config / "chat.yaml").read_bytes() == before
    with pytest.raises(PlaceError):
        dry.apply([service_document("alone")])


@pytest.mark.parametrize(
    "document",
    [
        service_document("chat", contextSize="many"),
        service_document("alone"),
        {**service_document("chat"), "kind": "Secret"},
        {"kind": "InferenceService"},
        {**service_document("chat"), "metadata": {"name": "../../chat"}},
    ],
)
def test_documents_that_are_not_valid_are_refused_and_nothing_is_written(
    place: LocalPlace, folders: LocalFolders, document: dict[str, object]
) -> None:
    deploy(place)
    before = (folders.config / "chat.yaml").read_text()
    with pytest.raises(PlaceError):
        place.apply([document])
    assert os.listdir(folders.config) == ["chat.yaml"]
    assert (folders.config / "chat.yaml").read_text() == before


def test_a_service_is_stopped_and_started(place: LocalPlace, folders: LocalFolders) -> None:
    place.stop(deploy(place))
    applied(folders)
    stopped = place.find("chat")
    assert (stopped.state, stopped.desired_replicas) == (State.STOPPED, 0)
    place.start(stopped)
    assert place.find("chat").document["spec"]["suspend"] is False
    assert place.scale(place.find("chat"), 0) == ""
    place.start(place.find("chat"))
    assert place.find("chat").document["spec"]["replicas"] == 1
    assert "one replica" in place.scale(place.find("chat"), 3)


def test_a_deletion_takes_the_model_along_unless_another_service_uses_it(
    place: LocalPlace, folders: LocalFolders
) -> None:
    deploy(place)
    (folders.config / "second.yaml").write_text(service("second").replace("modelRef: second", "modelRef: chat"))
    assert place.delete(place.find("chat")) == "InferenceService default/chat"
    assert "Model default/chat" in place.delete(place.find("second"))
    assert os.listdir(folders.config) == []


def test_a_deletion_keeps_the_model_while_a_file_that_may_use_it_is_broken(
    place: LocalPlace, folders: LocalFolders
) -> None:
    deploy(place)
    (folders.config / "second.yaml").write_text("kind: [")
    said = place.delete(place.find("chat"))
    assert said == "InferenceService default/chat; Model default/chat stays, because second.yaml cannot be read"
    assert "kind: Model" in (folders.config / "chat.yaml").read_text()


def test_a_purge_deletes_the_files_of_that_service_only(place: LocalPlace, folders: LocalFolders) -> None:
    deploy(place)
    deploy(place, "other")
    applied(folders)
    entries = Applied.read(folders.applied).services
    for entry in entries:
        for key in entry.cache_keys:
            (folders.store / key).mkdir()
    assert "its files" in place.delete(place.find("chat"), purge=True)
    assert sorted(os.listdir(folders.store)) == sorted(entries[1].cache_keys)


def test_names_are_found_with_their_kind_and_near_ones_are_shown(place: LocalPlace) -> None:
    deploy(place)
    assert place.find("isvc/chat").name == "chat"
    with pytest.raises(NoSuchService) as missing:
        place.find("chta")
    assert "chat" in missing.value.hint
    with pytest.raises(NoSuchService):
        place.find("playground/chat")
    with pytest.raises(NoSuchService):
        place.find("chat", "team")


def test_a_name_in_two_namespaces_means_several_services(place: LocalPlace, folders: LocalFolders) -> None:
    deploy(place)
    (folders.config / "team.yaml").write_text(both("chat").replace("metadata:\n", "metadata:\n  namespace: team\n"))
    with pytest.raises(NoSuchService, match="several services"):
        place.find("chat")
    assert place.find("chat", "team").namespace == "team"


def test_services_of_a_broken_file_are_shown_as_they_were(place: LocalPlace, folders: LocalFolders) -> None:
    deploy(place)
    applied(folders)
    (folders.config / "chat.yaml").write_text("kind: [never")
    found = place.find("chat")
    assert not found.is_current
    for change in (place.stop, place.delete):
        with pytest.raises(PlaceError, match=r"chat\.yaml .*YAML"):
            change(found)


def test_a_service_cannot_be_reached_while_local_mode_does_not_run(place: LocalPlace) -> None:
    made = deploy(place)
    assert (made.state, made.reason) == (State.STOPPED, "NotRunning")
    with pytest.raises(PlaceError) as refused, place.reach(made):
        pass
    assert "herdsman local up" in refused.value.hint


def test_a_watch_returns_at_a_change_and_ends_with_the_service(place: LocalPlace, folders: LocalFolders) -> None:
    made = deploy(place)
    assert place.watch(made, pause_s=0.0) == made
    applied(folders)
    assert place.watch(made, pause_s=60.0).is_current
    place.delete(made)
    with pytest.raises(NoSuchService):
        place.watch(made, pause_s=60.0)


def test_a_folder_that_cannot_be_read_is_an_error_and_no_empty_list(place: LocalPlace, folders: LocalFolders) -> None:
    folders.config.rmdir()
    folders.config.write_text("")
    with pytest.raises(PlaceError, match="cannot list"):
        place.services(None)


def test_a_machine_is_a_place_once_it_was_set_up(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("CONFIG", "STATE", "DATA"):
        monkeypatch.setenv(f"XDG_{name}_HOME", str(tmp_path / name))
    assert find_local_place() is None
    LocalFolders.of_user().make()
    found = find_local_place()
    assert found is not None
    assert (found.title, found.default_namespace) == ("this machine", "default")
