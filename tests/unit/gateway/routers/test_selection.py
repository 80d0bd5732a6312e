"""The rules of a router choose the backends of a request, and sensitive data stays local."""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gateway.errors import GatewayError
from gateway.routers.selection import Choice, Health, Traits, choose, team_may_use
from program.desired.router import Classification, ExternalModel, Match, Router, RouterBackend, Rule

SMALL = RouterBackend("small", "llama", capabilities=frozenset({"chat"}))
LARGE = RouterBackend("large", "qwen", display_name="best", capabilities=frozenset({"chat", "vision"}), weight=3)
CLOUD = RouterBackend(
    "cloud",
    external=ExternalModel("openai", "https://api.example", "m"),
    display_name="gpt-4o",
    capabilities=frozenset({"chat", "vision", "tools"}),
)


def router(*rules: Rule, **fields: Any) -> Router:
    return Router("prod", "r", (SMALL, LARGE, CLOUD), rules, **fields)


def chosen(
    of: Router,
    model: str = "x",
    *,
    headers: Mapping[str, str] | None = None,
    classes: tuple[str, ...] = (),
    complexity: str = "",
    health: Mapping[str, Health] | None = None,
    seed: int = 0,
) -> Choice | GatewayError:
    traits = Traits(model, headers or {}, frozenset(classes), complexity)
    return choose(of, traits, lambda name: (health or {}).get(name, Health()), random.Random(seed))


def names(found: Choice | GatewayError) -> list[str]:
    assert isinstance(found, Choice)
    return [each.name for each in found.candidates]


def code(found: Choice | GatewayError) -> str:
    assert isinstance(found, GatewayError)
    return found.code


def test_the_first_rule_that_matches_counts() -> None:
    of = router(Rule("code", ("large",), Match(models=("code-*",))), Rule("rest", ("small", "cloud")))
    assert names(chosen(of, "code-7b")) == ["large"]
    found = chosen(of, "chat")
    assert (names(found), isinstance(found, Choice) and found.rule) == (["small", "cloud"], "rest")


@pytest.mark.parametrize(
    ("pattern", "name", "matches"),
    [
        ("gpt-*", "gpt-4o", True),
        ("gpt-*", "GPT-4o", False),
        ("*", "org/model:tag", True),
        ("llama-?b", "llama-8b", True),
        ("llama-?b", "llama-70b", False),
        ("a[b]", "a[b]", True),
        ("a[b]", "ab", False),
        ("a.c", "abc", False),
    ],
)
def test_patterns_of_models(pattern: str, name: str, matches: bool) -> None:
    found = chosen(router(Rule("r", ("small",), Match(models=(pattern,)))), name)
    assert isinstance(found, Choice) is matches


def test_all_conditions_of_a_rule_must_hold() -> None:
    match = Match(
        frozenset({"internal"}),
        "complex",
        frozenset({"vision"}),
        headers=(("x-team", "a"),),
        models=("m",),
    )
    of = router(Rule("r", ("small", "large"), match))
    whole: dict[str, Any] = {"headers": {"x-team": "a"}, "classes": ("internal",), "complexity": "complex"}
    assert names(chosen(of, "m", **whole)) == ["large"], "only a backend with all capabilities"
    for changed in ({"headers": {"x-team": "A"}}, {"classes": ("public",)}, {"complexity": "simple"}):
        assert code(chosen(of, "m", **{**whole, **changed})) == "no_route"
    assert code(chosen(of, "n", **whole)) == "no_route"


def test_a_rule_whose_backends_lack_a_capability_does_not_match() -> None:
    of = router(Rule("r", ("small",), Match(capabilities=frozenset({"tools"}))), default="cloud")
    assert names(chosen(of)) == ["cloud"]


def test_names_of_backends_win_over_the_default() -> None:
    of = router(default="small", by_name=True)
    assert names(chosen(of, "gpt-4o")) == ["cloud"]
    assert names(chosen(of, "large")) == ["large"]
    assert names(chosen(of, "other")) == ["small"]
    assert names(chosen(replace(of, by_name=False), "gpt-4o")) == ["small"]
    assert code(chosen(replace(of, default=""), "other")) == "no_route"


def test_weights_are_the_shares_of_the_first_places_and_zero_gets_nothing() -> None:
    of = router(Rule("r", ("small", "large", "cloud"), strategy="weighted"))
    of = replace(of, backends=(SMALL, LARGE, replace(CLOUD, weight=0)))
    found = [names(chosen(of, seed=seed)) for seed in range(2000)]
    firsts = Counter(each[0] for each in found)
    assert 0.70 < firsts["large"] / 2000 < 0.80
    assert all(sorted(each) == ["large", "small"] for each in found)


def test_a_shadow_rule_has_one_candidate_and_copies() -> None:
    found = chosen(router(Rule("r", ("large", "small", "cloud"), strategy="shadow")))
    assert names(found) == ["large"]
    assert isinstance(found, Choice)
    assert [each.name for each in found.copies] == ["small", "cloud"]


def test_backends_that_failed_come_last() -> None:
    of = router(Rule("r", ("small", "large", "cloud")))
    assert names(chosen(of, health={"small": Health(usable=False)})) == ["large", "cloud", "small"]


def test_a_rule_with_a_time_prefers_backends_that_meet_it_and_ends_when_none_does() -> None:
    fast = Match(first_byte_s=0.2)
    of = router(Rule("fast", ("small", "large"), fast), default="cloud")
    slow, quick = Health(first_byte_s=1.0), Health(first_byte_s=0.1)
    assert names(chosen(of, health={"small": slow, "large": quick})) == ["large", "small"]
    assert names(chosen(of, health={"small": slow})) == ["large", "small"], "without a measurement it is tried"
    assert names(chosen(of, health={"small": slow, "large": slow})) == ["cloud"]


def test_sensitive_requests_that_no_rule_matches_are_refused() -> None:
    of = router(default="small", by_name=True)
    assert code(chosen(of, "small", classes=("pii",))) == "sensitive_data_refused"


def test_a_rule_without_local_backends_refuses_sensitive_requests() -> None:
    of = router(Rule("r", ("cloud",)))
    assert names(chosen(of)) == ["cloud"]
    assert code(chosen(of, classes=("phi",))) == "sensitive_data_refused"


BACKENDS = st.lists(st.sampled_from(["small", "large", "cloud"]), min_size=1, unique=True).map(tuple)
MATCHES = st.builds(
    Match,
    classes=st.sets(st.sampled_from(["pii", "phi", "public"])).map(frozenset),
    capabilities=st.sets(st.sampled_from(["chat", "vision", "tools"])).map(frozenset),
    models=st.sampled_from([(), ("*",), ("m*",)]),
)
RULES = st.lists(
    st.builds(
        Rule,
        name=st.just("r"),
        backends=BACKENDS,
        match=MATCHES,
        strategy=st.sampled_from(["primary-fallback", "weighted", "shadow"]),
        fail_closed=st.booleans(),
    ),
    max_size=4,
)


@given(
    rules=RULES,
    default=st.sampled_from(["", "small", "cloud"]),
    by_name=st.booleans(),
    model=st.sampled_from(["m", "gpt-4o", "cloud", "x"]),
    tier=st.sampled_from(["local", "cloud"]),
    classes=st.sets(st.sampled_from(["pii", "phi", "public"]), min_size=1).map(frozenset),
    usable=st.booleans(),
)
def test_no_router_sends_sensitive_data_away(
    rules: list[Rule],
    default: str,
    by_name: bool,
    model: str,
    tier: Any,
    classes: frozenset[str],
    usable: bool,
) -> None:
    of = replace(router(*rules, default=default, by_name=by_name), backends=(SMALL, LARGE, replace(CLOUD, tier=tier)))
    found = chosen(of, model, classes=tuple(classes), health={"small": Health(usable), "large": Health(usable)})
    if isinstance(found, Choice):
        assert found.candidates
        if classes & of.classification.sensitive:
            assert all(each.external is None for each in (*found.candidates, *found.copies))


def test_sensitive_classes_are_the_routers_own() -> None:
    of = router(default="cloud", classification=Classification(sensitive=frozenset({"secret"})))
    assert names(chosen(of, classes=("pii",))) == ["cloud"]
    assert code(chosen(of, classes=("secret",))) == "sensitive_data_refused"


def test_teams_may_use_the_models_of_the_list() -> None:
    of = router(allowed=(("a", ("gpt-*",)), ("b", ())))
    assert team_may_use(of, "a", "gpt-4o")
    assert not team_may_use(of, "a", "claude")
    assert team_may_use(of, "b", "claude")
    assert not team_may_use(of, "c", "gpt-4o")
    assert not team_may_use(of, "", "gpt-4o")
    assert team_may_use(router(), "", "anything")
