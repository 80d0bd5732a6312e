"""Wrong documents in one file never stop the service of another, whatever is wrong with them."""

from __future__ import annotations

import json
from typing import Any

from hypothesis import given

from automation.local.applied import Applied
from automation.local.applying import record
from automation.local.documents import _read_folder, read_folder
from automation.local.edits import EditRefused, FolderEdit, identity_of, is_object
from automation.local.routes import routes_of
from program.desired.keys import ServiceKey
from tests.support.hostile_documents import as_yaml, bounded, changed_examples, example_files
from tests.support.local_mode import both, service_document

MINE = ServiceKey("llmkube", "default", "my-own-chat")


@bounded(60)
@given(documents=changed_examples())
def test_wrong_documents_are_problems_of_their_own(documents: list[Any]) -> None:
    text = as_yaml(documents).encode("utf-8", "replace").decode()
    # The one that has no net for defects, so that this test finds them.
    folder = _read_folder({"a.yaml": text, "my.yaml": both(MINE.name)}, {})
    assert folder.services[MINE].rendered is not None
    applied = record(folder, Applied(), {}, "")
    json.loads(applied.model_dump_json())
    assert len(routes_of(applied, {})) == len(applied.services)


def test_all_examples_are_read() -> None:
    for name, documents in example_files().items():
        folder = read_folder({"a.yaml": as_yaml(documents), "my.yaml": both(MINE.name)}, {})
        assert folder.services[MINE].rendered is not None, name


@bounded(10)
@given(documents=changed_examples())
def test_an_edit_changes_no_other_document(documents: list[Any]) -> None:
    text = as_yaml(documents).encode("utf-8", "replace").decode()
    file = f"{MINE.name}.yaml"
    before, edit = FolderEdit({file: text}, {}), FolderEdit({file: text}, {})
    try:
        edit.put(service_document(MINE.name))
        edit.put(service_document(MINE.name, replicas=2))
    except EditRefused:
        return  # a person has to repair such a file
    assert edit.get(("InferenceService", "default", MINE.name)) == service_document(MINE.name, replicas=2)
    for document in documents:
        if is_object(document):
            assert edit.get(identity_of(document)) == before.get(identity_of(document))
