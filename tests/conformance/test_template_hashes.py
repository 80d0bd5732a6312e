"""An upgrade restarts no pods of KServe's and llmaz's services: pod templates have the hashes of the previous release.

`template_hashes.json` was recorded from that release. If the hash in the annotation is unchanged, the provider does not
change the template. If the template itself still has the recorded hash, Kubernetes restarts no pods.
If you change a hash on purpose, name in the change log the services whose pods restart, and write the file again with
`python -m tests.conformance.test_template_hashes`.
"""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from components import naming
from components.options import RenderOptions
from components.render import render
from components.rendered import fingerprint_of
from program.desired.errors import DesiredError
from program.dialects.registry import dialect_named, dialect_of
from tests.conformance.environment import file_lookup
from tests.conformance.vectors import Vector, all_vectors

_MADE_FROM = {"Deployment": "template", "LeaderWorkerSet": "leaderWorkerTemplate"}
FILE = Path(__file__).parent / "template_hashes.json"
VECTORS = [vector for family in ("kserve", "llmaz") for vector in all_vectors(family)]


def template_hashes(vector: Vector) -> dict[str, tuple[str, str]]:
    """Return by stage and object the hash in the annotation of a workload, and the hash of its template."""
    found = {}
    for number, stage in enumerate(vector.stages()):
        look = file_lookup(vector, number)
        for cr in stage.inputs:
            if not (name := dialect_of(cr)):
                continue
            owned = {**cr, "metadata": {**cr["metadata"], "namespace": vector.namespace, "uid": "uid-of-a-test"}}
            try:
                made = render(dialect_named(name).parse(owned, look).desired, RenderOptions())
            except DesiredError:
                continue
            for each in made.objects:
                if each.kind in _MADE_FROM:
                    text = fingerprint_of(each.manifest["spec"][_MADE_FROM[each.kind]])
                    mark = each.manifest["metadata"]["annotations"][naming.ANNOTATION_TEMPLATE_HASH]
                    found[f"{number} {each.kind}/{each.name}"] = (mark, text)
    return found


@pytest.mark.parametrize("vector", VECTORS, ids=lambda vector: vector.name)
def test_pods_of_the_release_before_are_left_alone(vector: Vector) -> None:
    recorded: dict[str, str] = json.loads(FILE.read_text()).get(vector.name, {})
    found = template_hashes(vector)
    assert found.keys() == recorded.keys()
    assert {name: hashes for name, hashes in found.items() if recorded[name] not in hashes} == {}


if __name__ == "__main__":
    made = {vector.name: {name: mark for name, (mark, _) in template_hashes(vector).items()} for vector in VECTORS}
    FILE.write_text(json.dumps({name: marks for name, marks in made.items() if marks}, indent=1, sort_keys=True) + "\n")
