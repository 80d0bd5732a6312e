"""Models on nodes: allowed only below the directories that the operator names, in every dialect."""

from __future__ import annotations

import pytest

from automation.reconcile.node_paths import check_node_paths
from automation.settings import Settings
from automation.startup.options import render_options
from kubeapi import kinds
from kubeapi.json_types import Json
from program.desired.errors import SpecInvalid
from program.dialects.llmaz.dialect import PLAYGROUNDS, SERVICES
from tests.unit.dialects.llmaz.objects import Cluster, made, open_model, playground, service

OPEN = "host:///etc/kubernetes"


def node_model(uri: str = OPEN) -> Json:
    return made(kinds.OPEN_MODELS, "m", {"familyName": "f", "source": {"uri": uri}})


@pytest.mark.parametrize(("dialect", "cr"), [(PLAYGROUNDS, playground()), (SERVICES, service())])
def test_a_node_path_of_llmaz_is_told_with_its_field(dialect: object, cr: Json) -> None:
    parsed = dialect.parse(cr, Cluster(node_model()))  # type: ignore[attr-defined]
    ((field, path),) = parsed.node_paths
    assert path == "/etc/kubernetes"
    with pytest.raises(SpecInvalid) as refused:
        check_node_paths(parsed.node_paths, ("/models",))
    assert refused.value.field == field and field.startswith("spec.modelClaim")
    assert refused.value.reason == "SourceNotAllowed"
    check_node_paths(parsed.node_paths, ("/etc",))
    assert dialect.parse(cr, Cluster(open_model())).node_paths == ()  # type: ignore[attr-defined]


@pytest.mark.parametrize("path", ["/models/../etc", "/modelsx/a", "models/a", "", "/"])
def test_a_path_beside_the_roots_is_refused(path: str) -> None:
    check_node_paths([("f", "/models/a")], ("/models",))
    with pytest.raises(SpecInvalid):
        check_node_paths([("f", path)], ("/models",))


def test_the_loop_allows_no_path_unless_it_is_told_to_and_a_static_fleet_all() -> None:
    assert render_options(Settings()).node_path_roots == ()
    with pytest.raises(SpecInvalid):
        check_node_paths([("f", "/models/a")], ())
    check_node_paths([("f", "/etc")], None)
