"""The assignment of namespaces to shards, and the Lease of each shard."""

from __future__ import annotations

import collections

import pytest

from automation.leadership.shards import WHOLE, Shard, shard_of_lease, shards


def test_undivided_everything_is_ours_under_the_name_that_always_was() -> None:
    assert WHOLE.contains("anything") and WHOLE.is_first
    assert WHOLE.lease("herdsman") == "herdsman"
    assert str(WHOLE) == "0/1"


@pytest.mark.parametrize("of", [2, 3, 8])
def test_each_namespace_belongs_to_exactly_one_part_and_they_are_spread_evenly(of: int) -> None:
    counted: collections.Counter[int] = collections.Counter()
    for number in range(2000):
        owners = [shard.number for shard in shards(of) if shard.contains(f"team-{number}")]
        assert len(owners) == 1
        counted[owners[0]] += 1
    assert min(counted.values()) > 0.8 * 2000 / of


def test_the_split_is_the_same_for_ever() -> None:
    """If releases used different hashes, two loops of different releases could handle the same namespace."""
    assert [Shard(0, 2).contains(name) for name in ("default", "team-a", "team-b", "models")] == [
        False,
        True,
        True,
        True,
    ]
    assert [next(s.number for s in shards(5) if s.contains(n)) for n in ("default", "team-a", "team-b", "models")] == [
        *(4, 1, 2, 2),
    ]


@pytest.mark.parametrize("shard", [Shard(0, 1), Shard(0, 2), Shard(7, 16)])
def test_a_lease_names_its_part(shard: Shard) -> None:
    assert shard_of_lease(shard.lease("herdsman"), "herdsman") == shard


@pytest.mark.parametrize("name", ["herdsman-host-mac", "herdsman-shard-2-of-2", "herdsman-shard-0-of-1", "other", ""])
def test_other_leases_are_no_part(name: str) -> None:
    assert shard_of_lease(name, "herdsman") is None
