"""Which part of the namespaces a loop looks after, and the name of the Lease by which it may. Pure.

Used by `election`, which holds the Lease, and by `assembly`, which keeps the loop to its part.
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
        """The first part does what concerns the whole cluster: lost hosts, hosts over SSH, the status of quotas."""
        return self.number == 0

    def contains(self, namespace: str) -> bool:
        """Whether the namespace belongs to this part: evenly, and for ever the same whatever Python's hash seed."""
        if self.of == 1:
            return True
        return int.from_bytes(hashlib.sha256(namespace.encode()).digest()[:8], "big") % self.of == self.number

    def lease(self, base: str) -> str:
        """The name of the Lease of this part; undivided it is the base name, as in releases that knew no parts."""
        return base if self.of == 1 else f"{base}-shard-{self.number}-of-{self.of}"


WHOLE = Shard()
"""All namespaces, where they are not split."""


def shards(of: int) -> tuple[Shard, ...]:
    """All parts."""
    return tuple(Shard(number, of) for number in range(of))


def shard_of_lease(name: str, base: str) -> Shard | None:
    """Read the part out of a Lease's name; None when it is no loop's."""
    if name == base:
        return Shard()
    found = re.fullmatch(re.escape(base) + r"-shard-(\d+)-of-(\d+)", name)
    if found is None or not int(found[1]) < int(found[2]) > 1:
        return None
    return Shard(int(found[1]), int(found[2]))
