"""Flavors: the nodes on which pods may run, the order of preference, and settings without effect."""

from __future__ import annotations

from typing import Any

import pytest

from kubeapi.json_types import Json
from program.desired.errors import SpecInvalid
from program.dialects.llmaz.parse.flavors import Choice, choose, lost_of, with_affinity
from program.dialects.llmaz.parse.models import Claim, Model, find_models
from tests.unit.dialects.llmaz.objects import Cluster, open_model

A10 = {"name": "a10", "limits": {"nvidia.com/gpu": 2}, "nodeSelector": {"gpu": "a10"}, "params": {"TP": "2"}}
H100 = {"name": "h100", "limits": {"nvidia.com/gpu": 1}, "nodeSelector": {"zone": "z1", "gpu": "h100"}}
ANY = {"name": "any"}
REQUIRED = "requiredDuringSchedulingIgnoredDuringExecution"
PREFERRED = "preferredDuringSchedulingIgnoredDuringExecution"


def model(*flavors: Json) -> Model:
    (found,) = find_models([Claim("m", "main", "spec.modelClaim.modelName")], Cluster(open_model(flavors=[*flavors])))
    return found


def term(**labels: str) -> Json:
    return {"matchExpressions": [{"key": key, "operator": "In", "values": [value]} for key, value in labels.items()]}


def node_affinity(choice: Choice, spec: Json | None = None) -> Any:
    return with_affinity(spec or {}, choice).get("affinity", {}).get("nodeAffinity", {})


def test_all_flavors_of_a_model_are_candidates_in_their_order() -> None:
    choice = choose(model(A10, H100), (), field="f")
    assert choice.limits == {"nvidia.com/gpu": "2"}
    assert choice.params == {"TP": "2"}
    assert node_affinity(choice) == {
        REQUIRED: {"nodeSelectorTerms": [term(gpu="a10"), term(gpu="h100", zone="z1")]},
        PREFERRED: [{"weight": 64, "preference": term(gpu="a10")}],
    }


def test_those_that_are_asked_for_are_candidates_in_that_order() -> None:
    choice = choose(model(A10, ANY, H100), ("h100", "a10"), field="f")
    assert choice.asked == ("h100", "a10")
    assert choice.limits == {"nvidia.com/gpu": "1"}
    assert node_affinity(choice)[PREFERRED] == [{"weight": 64, "preference": term(gpu="h100", zone="z1")}]


def test_a_flavor_without_a_selector_may_run_anywhere() -> None:
    choice = choose(model(A10, H100, ANY), (), field="f")
    assert node_affinity(choice) == {
        PREFERRED: [
            {"weight": 64, "preference": term(gpu="a10")},
            {"weight": 32, "preference": term(gpu="h100", zone="z1")},
        ]
    }


def test_one_flavor_needs_no_preference_and_no_flavor_nothing() -> None:
    assert node_affinity(choose(model(A10), (), field="f")) == {REQUIRED: {"nodeSelectorTerms": [term(gpu="a10")]}}
    assert with_affinity({"containers": []}, choose(model(ANY), (), field="f")) == {"containers": []}
    assert with_affinity({"containers": []}, choose(model(), (), field="f")) == {"containers": []}


def test_every_earlier_flavor_outweighs_all_later_ones_together() -> None:
    flavors = [{"name": f"f{index}", "nodeSelector": {"gpu": str(index)}} for index in range(8)]
    weights = [each["weight"] for each in node_affinity(choose(model(*flavors), (), field="f"))[PREFERRED]]
    assert weights == [64, 32, 16, 8, 4, 2, 1]
    assert all(weight > sum(weights[index + 1 :]) for index, weight in enumerate(weights))


def test_what_the_user_demands_of_nodes_is_demanded_too() -> None:
    theirs = {"matchExpressions": [{"key": "disk", "operator": "Exists"}], "matchFields": [{"key": "metadata.name"}]}
    spec = {
        "affinity": {
            "podAffinity": {"x": 1},
            "nodeAffinity": {
                REQUIRED: {"nodeSelectorTerms": [theirs, term(rack="r1")]},
                PREFERRED: [{"weight": 1, "preference": term(a="b")}],
            },
        }
    }
    affinity = with_affinity(spec, choose(model(A10, H100), (), field="f"))["affinity"]
    assert affinity["podAffinity"] == {"x": 1}
    terms = affinity["nodeAffinity"][REQUIRED]["nodeSelectorTerms"]
    assert len(terms) == 4
    assert terms[0]["matchFields"] == [{"key": "metadata.name"}]
    assert [each["key"] for each in terms[0]["matchExpressions"]] == ["disk", "gpu"]
    assert [each["key"] for each in terms[3]["matchExpressions"]] == ["rack", "gpu", "zone"]
    assert [each["weight"] for each in affinity["nodeAffinity"][PREFERRED]] == [1, 64]


@pytest.mark.parametrize(("flavors", "has"), [((A10, H100), "it has a10, h100"), ((), "it has none")])
def test_a_flavor_that_the_model_has_not_is_refused(flavors: tuple[Json, ...], has: str) -> None:
    with pytest.raises(SpecInvalid) as raised:
        choose(model(*flavors), ("b200",), field="spec.modelClaim.inferenceFlavors")
    assert raised.value.field == "spec.modelClaim.inferenceFlavors[0]"
    assert raised.value.why == f"OpenModel `m` has no flavor `b200`; {has}"


def test_amounts_of_a_flavor_that_is_not_first_are_said_to_be_lost() -> None:
    chosen = model(A10, H100)
    lost = list(lost_of(chosen, choose(chosen, (), field="f"), ["-tp", "{{ .TP }}"]))
    assert [(problem.field, problem.message.partition(":")[0]) for problem in lost] == [
        ("spec.modelClaim.modelName", "OpenModel `m` spec.inferenceConfig.flavors[h100].limits have no effect")
    ]
    assert not list(lost_of(chosen, choose(chosen, ("h100",), field="f"), []))


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        ([], True),
        (["--model", "x"], True),
        (["--tensor-parallel-size", "2"], False),
        (["--tensor-parallel-size={{ .TP }}"], False),
        (["-tp", "2"], False),
        (["serve --tp 2"], False),
    ],
)
def test_parallelism_that_no_argument_names_is_said_to_be_lost(arguments: list[str], said: bool) -> None:
    chosen = model(A10)
    lost = [problem.message for problem in lost_of(chosen, choose(chosen, (), field="f"), arguments)]
    assert bool(lost) is said
    if said:
        assert "params.TP=2 has no effect" in lost[0]


def test_of_two_flavors_of_one_name_the_first_counts() -> None:
    flavors = [{"name": "a", "limits": {"nvidia.com/gpu": 1}}, {"name": "a", "limits": {"nvidia.com/gpu": 8}}]
    (model,) = find_models([Claim("m", "main", "f")], Cluster(open_model(flavors=flavors)))
    assert choose(model, ["a"], field="f").limits == choose(model, [], field="f").limits == {"nvidia.com/gpu": "1"}
