"""Who has the turn in a pool, who is next, and when the next turn begins. One row is one situation."""

from __future__ import annotations

import pytest

from automation.serving.turns.rules import Decision, Member, Rules, Turn, decide, first_turn

NOW = 1000.0
RULES = Rules(min_turn_s=60, start_s=300, default="")
A_SERVES_LONG = Turn("a", NOW - 500, NOW - 400)
A_SERVES_SHORTLY = Turn("a", NOW - 40, NOW - 20)
A_STARTS = Turn("a", NOW - 30)


def idle(name: str) -> Member:
    return Member(name)


def waiting(name: str, since: float = NOW - 5, **more: object) -> Member:
    return Member(name, waiting_since=since, **more)  # type: ignore[arg-type] # the fields of Member


def serving(name: str, **more: object) -> Member:
    return Member(name, runs=True, occupies=True, ready=True, **more)  # type: ignore[arg-type] # the fields of Member


def starting(name: str, **more: object) -> Member:
    return Member(name, runs=True, occupies=True, **more)  # type: ignore[arg-type] # the fields of Member


def stopping(name: str, **more: object) -> Member:
    return Member(name, occupies=True, **more)  # type: ignore[arg-type] # the fields of Member


@pytest.mark.parametrize(
    ("members", "turn", "expected"),
    [
        pytest.param([idle("a"), idle("b")], None, Decision(), id="nobody is wanted"),
        pytest.param([idle("a"), waiting("b")], None, Decision(Turn("b", NOW)), id="the first request starts a member"),
        pytest.param(
            [waiting("a", NOW - 3), waiting("b", NOW - 9), waiting("c", NOW - 6)],
            None,
            Decision(Turn("b", NOW)),
            id="the longest wait comes first",
        ),
        pytest.param(
            [serving("a"), idle("b")], A_SERVES_LONG, Decision(A_SERVES_LONG), id="an idle member keeps its turn"
        ),
        pytest.param(
            [serving("a"), waiting("b")],
            A_SERVES_SHORTLY,
            Decision(A_SERVES_SHORTLY, "b", "MinimumTurn", look_again=NOW + 40),
            id="a turn has a minimum time",
        ),
        pytest.param(
            [serving("a"), waiting("b")],
            A_SERVES_LONG,
            Decision(None, "b", "PodsRemain", ("a",)),
            id="after that time the holder stops, also a busy one",
        ),
        pytest.param(
            [stopping("a", waiting_since=NOW - 1), waiting("b")],
            None,
            Decision(None, "b", "PodsRemain", ("a",)),
            id="the next member does not start beside the pods of the last",
        ),
        pytest.param(
            [waiting("a", NOW - 1), waiting("b")], None, Decision(Turn("b", NOW)), id="it starts when they are gone"
        ),
        pytest.param([stopping("a"), idle("b")], None, Decision(), id="requests that are given up start nothing"),
        pytest.param(
            [starting("a"), waiting("b")],
            A_STARTS,
            Decision(A_STARTS, "b", "MemberStarting", look_again=NOW + 270),
            id="a start is not wasted",
        ),
        pytest.param(
            [starting("a"), waiting("b")],
            Turn("a", NOW - 300),
            Decision(None, "b", "PodsRemain", ("a",)),
            id="a start that takes too long ends",
        ),
        pytest.param(
            [starting("a", waiting_since=NOW - 400), waiting("b")],
            Turn("a", NOW - 300),
            Decision(None, "b", "PodsRemain", ("a",)),
            id="also if its own requests have waited longer",
        ),
        pytest.param(
            [starting("a", failure="ImagePullFailed: no such image"), waiting("b")],
            A_STARTS,
            Decision(None, "b", "PodsRemain", ("a",)),
            id="a member that cannot start gives way at once",
        ),
        pytest.param(
            [starting("a", failure="ImagePullFailed: no such image"), idle("b")],
            A_STARTS,
            Decision(A_STARTS),
            id="a member that cannot start keeps trying while nobody waits",
        ),
        pytest.param(
            [serving("a"), idle("b")],
            A_STARTS,
            Decision(Turn("a", NOW - 30, NOW)),
            id="the minimum time begins when the member serves",
        ),
        pytest.param(
            [serving("a", frozen=True), waiting("b")],
            A_SERVES_LONG,
            Decision(A_SERVES_LONG, "b", "MemberFrozen", ("a",)),
            id="a paused member is not stopped",
        ),
        pytest.param(
            [serving("a"), waiting("b", comes_last=True)],
            A_SERVES_LONG,
            Decision(A_SERVES_LONG),
            id="nothing stops for a member that just failed to start",
        ),
        pytest.param(
            [waiting("a", NOW - 9, comes_last=True), waiting("b", NOW - 1)],
            None,
            Decision(Turn("b", NOW)),
            id="others come before a member that just failed to start",
        ),
        pytest.param(
            [waiting("a", comes_last=True), idle("b")],
            None,
            Decision(Turn("a", NOW)),
            id="it may try again when nobody else waits",
        ),
        pytest.param(
            [idle("a"), waiting("b")],
            A_STARTS,
            Decision(A_STARTS, "b", "MemberStarting", look_again=NOW + 270),
            id="a turn without a Deployment yet is a start",
        ),
        pytest.param(
            [Member("a", frozen=True), waiting("b")],
            A_STARTS,
            Decision(Turn("b", NOW)),
            id="a member that cannot be started gives way at once",
        ),
        pytest.param(
            [serving("a"), waiting("b", frozen=True)],
            A_SERVES_LONG,
            Decision(A_SERVES_LONG),
            id="nothing stops for a member that may not start",
        ),
        pytest.param(
            [serving("a", frozen=True), waiting("b")],
            None,
            Decision(None, "b", "MemberFrozen", ("a",)),
            id="a paused member outside its turn blocks the GPUs",
        ),
        pytest.param(
            [serving("b"), waiting("c")],
            A_SERVES_LONG,
            Decision(None, "c", "PodsRemain", ("b",)),
            id="the turn of a member that left the pool ends",
        ),
        pytest.param(
            [stopping("a", waiting_since=NOW - 9), idle("b")],
            None,
            Decision(Turn("a", NOW)),
            id="a member may start again beside its own last pods",
        ),
    ],
)
def test_a_decision(members: list[Member], turn: Turn | None, expected: Decision) -> None:
    assert decide(members, turn, RULES, now=NOW) == expected


@pytest.mark.parametrize(
    ("members", "expected"),
    [
        pytest.param([idle("a"), idle("b")], Decision(Turn("b", NOW)), id="it starts in a cold pool"),
        pytest.param([waiting("a"), idle("b")], Decision(Turn("a", NOW)), id="a request comes before it"),
        pytest.param([stopping("a"), idle("b")], Decision(None, "b", "PodsRemain", ("a",)), id="it waits for the GPUs"),
        pytest.param([idle("a"), Member("b", starts_alone=False)], Decision(), id="one that sleeps when idle sleeps"),
        pytest.param([idle("a"), Member("b", frozen=True)], Decision(), id="a paused one does not start"),
        pytest.param([idle("a")], Decision(), id="one that is no member is ignored"),
    ],
)
def test_the_default_member(members: list[Member], expected: Decision) -> None:
    assert decide(members, None, Rules(default="b"), now=NOW) == expected


def test_three_busy_members_get_turns_one_after_another() -> None:
    turn, order = Turn("a", 0.0, 0.0), []
    since = {"a": 1.0, "b": 2.0, "c": 3.0}
    now = 0.0
    for _ in range(6):
        now += 61
        holder = turn.member
        others = [waiting(name, at) for name, at in since.items() if name != holder]
        ended = decide([serving(holder), *others], turn, RULES, now=now)
        assert ended.turn is None
        since[holder] = now
        begun = decide([waiting(name, at) for name, at in since.items()], None, RULES, now=now).turn
        assert begun is not None
        turn = Turn(begun.member, now, now)
        order.append(turn.member)
    assert order == ["b", "c", "a", "b", "c", "a"]


@pytest.mark.parametrize(
    ("members", "resident", "default", "expected"),
    [
        pytest.param([idle("a"), idle("b")], "a", "b", None, id="none runs"),
        pytest.param([idle("a"), serving("b")], "a", "a", Turn("b", NOW, NOW), id="the one that runs"),
        pytest.param([serving("a"), serving("b")], "b", "a", Turn("b", NOW, NOW), id="the one of the status"),
        pytest.param([serving("a"), serving("b")], "", "b", Turn("b", NOW, NOW), id="the default"),
        pytest.param([serving("a"), serving("b")], "gone", "", Turn("a", NOW, NOW), id="the first of the spec"),
        pytest.param([starting("a"), idle("b")], "", "", Turn("a", NOW), id="one that starts"),
        pytest.param([stopping("a"), idle("b")], "a", "", None, id="not one that stops"),
    ],
)
def test_the_turn_after_a_restart(members: list[Member], resident: str, default: str, expected: Turn | None) -> None:
    assert first_turn(members, resident=resident, default=default, now=NOW) == expected
