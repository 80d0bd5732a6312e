"""The parts of the namespaces that several loops share, and the name of each part's Lease. Pure.

Used by `election`, which holds the Lease, and by `assembly`, which restricts the loop to its part.
"""

from __future__ import annotations

import hashlib
import re
from dataclasses import dataclass


@dataclass(frozen=True)
class Shard:
    """One of `of` parts, counted from 0."""

    number: int = 0
    of: int = 1

    def __str__(self) -> str:
        return f"{self.number}/{self.of}"

    @property
    def is_first(self) -> bool:
        """The first part does the work for the whole cluster: lost hosts, hosts over SSH, the status of quotas."""
        return self.number == 0

    def contains(self, namespace: str) -> bool:
        """Return whether the namespace belongs to this part. Python's hash seed does not change the split."""
        if self.of == 1:
            return True
        return int.from_bytes(hashlib.sha256(namespace.encode()).digest()[:8], "big") % self.of == self.number

    def lease(self, base: str) -> str:
        """Return the name of this part's Lease; without shards it is the base name."""
        return base if self.of == 1 else f"{base}-shard-{self.number}-of-{self.of}"


WHOLE = Shard()
"""The part with all namespaces, for a loop without shards."""


def shards(of: int) -> tuple[Shard, ...]:
    """All parts."""
    return tuple(Shard(number, of) for number in range(of))


def shard_of_lease(name: str, base: str) -> Shard | None:
    """Parse the part from the name of a Lease; None when it is not a Lease of a loop."""
    if name == base:
        return Shard()
    found = re.fullmatch(re.escape(base) + r"-shard-(\d+)-of-(\d+)", name)
    if found is None or not int(found[1]) < int(found[2]) > 1:
        return None
    return Shard(int(found[1]), int(found[2]))
