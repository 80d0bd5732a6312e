"""The models of a group in memory: which one is unloaded, for how long, without starvation and without thrashing."""

from __future__ import annotations

from dataclasses import dataclass, replace

from hypothesis import given, settings
from hypothesis import strategies as st

from agent.server.memory.need import Need, total
from agent.server.memory.residency import Decision, Member, Residency, Rules, decide

GIB = 1 << 30
ROOM = Need(16 * GIB)
RULES = Rules(dwell_s=60, idle_s=60, batch_s=2, patience_s=30)


def member(
    key: str,
    residency: Residency = "preferred",
    gib: float | None = 10,
    *,
    since: float | None = None,
    wanted: float | None = None,
    used: float | None = None,
    priority: int = 0,
    in_flight: int = 0,
    proxied: bool = True,
    ready: bool = True,
) -> Member:
    need = Need(int(gib * GIB)) if gib is not None else None
    return Member(
        key=key,
        residency=residency,
        need=need,
        priority=priority,
        inside_since=since,
        wanted_since=wanted,
        used_at=used,
        in_flight=in_flight,
        proxied=proxied,
        ready_to_start=ready,
    )


def choose(*members: Member, now: float = 1000.0) -> Decision:
    return decide(members, ROOM, now=now, rules=RULES)


def inside(*members: Member, now: float = 1000.0) -> set[str]:
    return set(choose(*members, now=now).inside)


def test_all_that_fit_are_in() -> None:
    assert inside(member("a", gib=8), member("b", gib=8)) == {"a", "b"}
    assert inside(member("a", gib=8), member("b", gib=9)) == {"a"}


def test_the_pinned_never_leaves() -> None:
    pinned = member("p", "pinned", since=0)
    assert inside(pinned, member("d", "onDemand", wanted=900)) == {"p"}
    assert inside(pinned, member("d", "onDemand", 6, wanted=900)) == {"p", "d"}
    # Its place is reserved also before it is loaded.
    assert inside(replace(pinned, inside_since=None), member("x", since=0)) == {"p"}


def test_the_preferred_gives_way_to_who_is_asked_for_and_comes_back_once_that_one_is_idle() -> None:
    home, guest = member("home", since=0), member("guest", "onDemand")
    assert inside(home, guest) == {"home"}
    wanted = replace(guest, wanted_since=999.5)
    assert inside(home, wanted) == {"guest"}
    out, there = member("home"), member("guest", "onDemand", since=900, used=995)
    decision = choose(out, there)
    assert set(decision.inside) == {"guest"}
    assert decision.look_again == 1055
    assert inside(out, there, now=1056) == {"home"}


def test_an_idle_guest_stays_while_nobody_wants_its_place() -> None:
    assert inside(member("guest", "onDemand", since=0, used=10)) == {"guest"}
    assert inside(member("guest", "onDemand")) == set()


def test_nobody_is_pushed_out_before_its_least_time() -> None:
    wanted = member("w", "onDemand", wanted=990)
    decision = choose(member("a", since=950), wanted)
    assert set(decision.inside) == {"a"}
    assert decision.blocked_by == {"w": ("a",)}
    assert decision.look_again == 1010
    assert inside(member("a", since=950), wanted, now=1011) == {"w"}
    assert inside(replace(member("a", since=990), dwell_s=5), wanted) == {"w"}


def test_nobody_is_pushed_out_while_it_starts() -> None:
    starting = replace(member("a", "onDemand"), starting=True, dwell_s=0)
    assert inside(starting, member("w", "onDemand", wanted=0), member("home")) == {"a"}


def test_requests_for_who_is_in_go_first_until_another_waited_too_long() -> None:
    wanted = member("w", "onDemand", wanted=990)
    busy = member("a", "onDemand", since=0, in_flight=2)
    assert inside(busy, wanted) == {"a"}
    assert inside(member("a", "onDemand", since=0, used=999), wanted) == {"a"}
    assert inside(member("a", "onDemand", since=0, used=997), wanted) == {"w"}
    assert inside(busy, wanted, now=1021) == {"w"}


def test_priority_decides_among_those_that_are_asked_for_then_the_longest_wait() -> None:
    assert inside(member("a", wanted=1), member("b", wanted=2, priority=5)) == {"b"}
    assert inside(member("a", wanted=2), member("b", wanted=1)) == {"b"}


def test_nobody_leaves_for_one_that_would_not_fit_then() -> None:
    pinned, home = member("p", "pinned", 8, since=0), member("home", gib=8, since=0)
    assert inside(pinned, home, member("big", "onDemand", 12, wanted=900)) == {"p", "home"}


def test_who_has_grown_is_not_pushed_out_for_nobody() -> None:
    assert inside(member("a", gib=20, since=0)) == {"a"}
    assert inside(member("a", gib=20, since=0), member("idle", "onDemand")) == {"a"}
    assert inside(member("a", gib=20, since=0), member("w", "onDemand", 1, wanted=900)) == {"w"}


def test_who_can_never_come_in_is_told_apart_from_who_waits() -> None:
    decision = choose(member("p", "pinned", 8, since=0), member("a", gib=8, since=0), member("big", gib=9))
    assert decision.too_large == {"big": Need(8 * GIB)}
    assert choose(member("a", since=0), member("b")).too_large == {}


def test_a_model_that_is_still_downloaded_pushes_nobody_out() -> None:
    assert inside(member("a", since=0), member("w", "onDemand", wanted=900, ready=False)) == {"a"}


def test_an_unknown_need_takes_turns_with_all_others() -> None:
    assert inside(member("a", gib=1, since=0), member("w", "onDemand", None, wanted=900)) == {"w"}
    assert inside(member("w", "onDemand", None, since=990), member("a", gib=1)) == {"w"}


def test_without_a_proxy_priority_and_residency_decide() -> None:
    group = [
        member("pinned", "pinned", 6, proxied=False),
        member("low", "preferred", 6, proxied=False, priority=1),
        member("high", "preferred", 6, proxied=False, priority=2),
        member("demand", "onDemand", 4, proxied=False, priority=9),
    ]
    assert inside(*group) == {"pinned", "high", "demand"}


@dataclass
class Host:
    """A host with the members of a group over time; it follows each decision at once."""

    members: dict[str, Member]
    now: float = 0.0
    swaps: int = 0

    def step(self, seconds: float = 1.0) -> None:
        self.now += seconds
        decision = decide(self.members.values(), ROOM, now=self.now, rules=RULES)
        chosen = [self.members[key] for key in decision.inside]
        assert total(m.need or ROOM for m in chosen if m.residency != "pinned").within(ROOM)
        for key, one in self.members.items():
            there = one.inside_since is not None
            if key in decision.inside and not there:
                used = self.now if one.wanted_since is not None else one.used_at
                self.members[key] = replace(one, inside_since=self.now, wanted_since=None, used_at=used)
            elif key not in decision.inside and there:
                assert one.residency != "pinned"
                assert one.inside_since is not None
                assert self.now - one.inside_since >= RULES.dwell_s
                self.swaps += 1
                self.members[key] = replace(one, inside_since=None)

    def ask(self, key: str) -> None:
        one = self.members[key]
        if one.inside_since is None:
            self.members[key] = replace(one, wanted_since=one.wanted_since or self.now)
        else:
            self.members[key] = replace(one, used_at=self.now)


def test_two_that_are_asked_for_all_the_time_take_turns_of_a_minute() -> None:
    host = Host({"a": member("a", "onDemand"), "b": member("b", "onDemand")})
    for _ in range(600):
        host.ask("a")
        host.ask("b")
        host.step()
    # In ten minutes there is at most one swap a minute, and at least six in total.
    assert 6 <= host.swaps <= 10


members = st.builds(
    member,
    st.just(""),
    st.sampled_from(["preferred", "onDemand"]),
    st.floats(0.5, 16),
    priority=st.integers(0, 2),
)


@settings(max_examples=40, deadline=None)
@given(
    st.lists(members, min_size=1, max_size=4), st.lists(st.tuples(st.integers(0, 3), st.integers(1, 40)), max_size=25)
)
def test_whoever_is_asked_for_gets_its_turn_and_what_is_preferred_is_back_in_the_end(
    made: list[Member], requests: list[tuple[int, int]]
) -> None:
    host = Host({str(n): replace(one, key=str(n)) for n, one in enumerate(made)})
    for number, seconds in requests:
        host.ask(str(number % len(made)))
        host.step(seconds)
    waiting = {key for key, one in host.members.items() if one.wanted_since is not None}
    for _ in range(400):
        host.step()
        waiting -= {key for key, one in host.members.items() if one.wanted_since is None}
    assert not waiting
    # After minutes without a request, a preferred member of the highest priority is in memory.
    preferred = [one for one in host.members.values() if one.residency == "preferred"]
    if preferred:
        first = min(preferred, key=lambda one: -one.priority)
        assert any(o.inside_since is not None for o in preferred if o.priority == first.priority)
    before = host.swaps
    for _ in range(200):
        host.step()
    assert host.swaps == before
