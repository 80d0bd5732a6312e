"""Commands change one document of a file, and leave the others and their comments as they are."""

from __future__ import annotations

from pathlib import Path

import pytest
import yaml

from automation.local.edits import EditRefused, FolderEdit, merged
from tests.support.local_mode import both, model, service, service_document

CHAT = ("InferenceService", "default", "chat")


def documents(text: str) -> list[str]:
    return [f"{each['kind']} {each['metadata']['name']}" for each in yaml.safe_load_all(text) if each]


def test_a_new_document_gets_a_file_of_its_name() -> None:
    edit = FolderEdit({}, {})
    edit.put(service_document("chat"))
    edit.put({**service_document("chat"), "metadata": {"name": "chat", "namespace": "team"}})
    assert sorted(edit.texts) == ["chat.yaml", "team.chat.yaml"]


def test_a_document_joins_the_file_of_its_name() -> None:
    edit = FolderEdit({"chat.yaml": model("chat")}, {})
    edit.put(service_document("chat"))
    assert documents(edit.texts["chat.yaml"]) == ["Model chat", "InferenceService chat"]


def test_a_change_keeps_the_other_documents_and_their_comments() -> None:
    text = f"# ours\n{model('chat')}# the service\n---\n{service('chat')}---\n# the last\n{service('other')}"
    edit = FolderEdit({"all.yaml": text}, {})
    edit.put(service_document("chat", replicas=2))
    made = edit.texts["all.yaml"]
    assert documents(made) == ["Model chat", "InferenceService chat", "InferenceService other"]
    assert all(comment in made for comment in ("# ours", "# the service", "# the last"))
    assert FolderEdit({"all.yaml": made}, {}).get(CHAT) == service_document("chat", replicas=2)


def test_a_document_on_the_line_of_its_separator_is_changed() -> None:
    flow = "--- {apiVersion: v1, kind: InferenceService, metadata: {name: chat}}\n---\n" + service("other")
    edit = FolderEdit({"all.yaml": flow}, {})
    edit.put(service_document("chat"))
    assert documents(edit.texts["all.yaml"]) == ["InferenceService chat", "InferenceService other"]


def test_a_removed_document_leaves_the_others_and_takes_an_empty_file_with_it() -> None:
    edit = FolderEdit({"chat.yaml": both("chat"), "other.yaml": service("other")}, {})
    edit.remove(CHAT)
    assert documents(edit.texts["chat.yaml"]) == ["Model chat"]
    edit.remove(("Model", "default", "chat"))
    assert list(edit.texts) == ["other.yaml"]
    assert edit.changed == ("chat.yaml",)


def test_an_item_of_a_list_is_left_to_a_person() -> None:
    edit = FolderEdit({"all.yaml": yaml.safe_dump({"kind": "List", "items": [service_document("chat")]})}, {})
    with pytest.raises(EditRefused, match="item of a list"):
        edit.put(service_document("chat", replicas=2))


@pytest.mark.parametrize(
    ("namespace", "name"), [("default", "../chat"), ("../x", "chat"), ("default", ""), ("a/b", "c")]
)
def test_a_name_that_could_be_a_path_is_refused(namespace: str, name: str) -> None:
    document = {**service_document("chat"), "metadata": {"namespace": namespace, "name": name}}
    with pytest.raises(EditRefused):
        FolderEdit({}, {}).put(document)


def test_a_broken_file_is_not_overwritten() -> None:
    for texts, broken in (({"chat.yaml": "kind: [never"}, {}), ({}, {"chat.yaml": "cannot be read"})):
        with pytest.raises(EditRefused, match="repair or delete"):
            FolderEdit(texts, broken).put(service_document("chat"))


def test_a_json_file_stays_json() -> None:
    import json

    edit = FolderEdit({"chat.json": json.dumps(service_document("chat"))}, {})
    edit.put(service_document("chat", replicas=2))
    assert json.loads(edit.texts["chat.json"])["spec"]["replicas"] == 2


def test_files_are_written_privately_and_links_stay(tmp_path: Path) -> None:
    real = tmp_path / "repository.yaml"
    real.write_text(service("chat"))
    folder = tmp_path / "folder"
    folder.mkdir()
    (folder / "chat.yaml").symlink_to(real)
    edit = FolderEdit({"chat.yaml": real.read_text()}, {})
    edit.put(service_document("chat", replicas=2))
    edit.put(service_document("new"))
    edit.write(folder)
    assert (folder / "chat.yaml").is_symlink()
    assert "replicas: 2" in real.read_text()
    assert (folder / "new.yaml").stat().st_mode & 0o777 == 0o600


def test_merging_keeps_what_the_new_document_does_not_name() -> None:
    old = {"spec": {"replicas": 2, "args": ["a"], "endpoint": {"port": 1}}}
    assert merged(old, {"spec": {"args": ["b"], "endpoint": {"path": "/"}}}) == {
        "spec": {"replicas": 2, "args": ["b"], "endpoint": {"port": 1, "path": "/"}}
    }
