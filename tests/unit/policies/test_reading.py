"""Folders of policies: the files that are read, and the messages for mistakes."""

from __future__ import annotations

from pathlib import Path

import pytest
import yaml

from components.policies.policy import NoPolicies, PolicyUnreadable
from components.policies.reading import digest_of, load_policies, read_texts
from tests.unit.policies.folders import check, document, folder, policies


def test_no_folder_is_no_policy() -> None:
    assert isinstance(load_policies(None), NoPolicies)


def test_an_empty_folder_forbids_nothing(tmp_path: Path) -> None:
    assert check(policies(tmp_path)) == ()


def test_documents_files_and_what_is_left_out(tmp_path: Path) -> None:
    two = document("a", namespaces={"allowed": ["x"]}) + "---\n---\n" + document("b", namespaces={"allowed": ["y"]})
    given = policies(tmp_path, two_yaml=two, c_json=document("c", namespaces={"allowed": ["z"]}), notes_txt="nothing")
    assert len(given) == 3
    assert [v.policy for v in check(given)] == ["c", "a", "b"]


def test_a_mounted_config_map_is_read_once(tmp_path: Path) -> None:
    """The kubelet writes a folder for each version, a link to the newest one, and a link for each file."""
    folder(tmp_path / "..2026_11_22", p_yaml=document())
    (tmp_path / "..data").symlink_to("..2026_11_22")
    (tmp_path / "p.yaml").symlink_to("..data/p.yaml")
    assert list(read_texts(tmp_path)) == ["p.yaml"]
    before = digest_of(read_texts(tmp_path))
    folder(tmp_path / "..2026_11_23", p_yaml=document("q"))
    (tmp_path / "..new").symlink_to("..2026_11_23")
    (tmp_path / "..new").rename(tmp_path / "..data")
    assert digest_of(read_texts(tmp_path)) != before


BOMB = "a: &a [x, x, x]\nb: &b [*a, *a, *a]\nc: [*b, *b, *b]\n"


@pytest.mark.parametrize(
    ("text", "why"),
    [
        ("a: [", "p.yaml: line 1 is not YAML"),
        ("just words", "p.yaml: is not an object of kind Policy"),
        (
            yaml.safe_dump({"kind": "Model", "apiVersion": "v1"}),
            "p.yaml: is v1, kind Model; only herdsman.dev/v1alpha1",
        ),
        (document(rule={}), "p.yaml: spec.rule: is not a field of a policy"),
        (document(pods={"forbidPriviledged": True}), "p.yaml: spec.pods.forbidPriviledged: is not a field"),
        (document(resources={"cpu": {"max": "lots"}}), "p.yaml: spec.resources.cpu.max: `lots`: "),
        (document(resources={"gpu": {"max": -1}}), "p.yaml: spec.resources.gpu.max: `-1`: "),
        (document(imageRegistries={"allowed": []}), "p.yaml: spec.imageRegistries.allowed: "),
        (document(imageRegistries={}), "p.yaml: spec.imageRegistries.allowed: field required"),
        (document(sources={"schemes": ["ftp"]}), "p.yaml: spec.sources.schemes[0]: `ftp`: "),
        (document(enforcement="sometimes"), "p.yaml: spec.enforcement: `sometimes`: "),
        (document(rules=[{"name": "r", "cel": "true"}]), "p.yaml: spec.rules[0].message: field required"),
        (document("a") + "---\n" + document("a"), "p.yaml: document 2: metadata.name: `a` is taken by p.yaml"),
        (document() + "---\n" + document("", pods={}), "p.yaml: document 2: metadata.name: "),
        (BOMB, "p.yaml: has YAML aliases"),
        ("!!python/object/apply:os.system ['true']", "p.yaml: line 1 is not YAML"),
        ("[" * 5000, "p.yaml: "),
    ],
)
def test_a_mistake_is_named_with_file_and_field(tmp_path: Path, text: str, why: str) -> None:
    with pytest.raises(PolicyUnreadable) as caught:
        policies(tmp_path, p_yaml=text)
    assert str(caught.value).startswith(why)


def test_a_folder_that_cannot_be_read(tmp_path: Path) -> None:
    with pytest.raises(PolicyUnreadable, match="No such file or directory"):
        load_policies(tmp_path / "nowhere")
    with pytest.raises(PolicyUnreadable, match="Not a directory"):
        load_policies(Path(__file__))
    (tmp_path / "p.yaml").write_bytes(b"\xff\xfe")
    with pytest.raises(PolicyUnreadable, match=r"p\.yaml: is not UTF-8"):
        load_policies(tmp_path)
    (tmp_path / "p.yaml").write_bytes(b"#" * ((1 << 20) + 1))
    with pytest.raises(PolicyUnreadable, match=r"p\.yaml: is larger than 1 MiB"):
        load_policies(tmp_path)
