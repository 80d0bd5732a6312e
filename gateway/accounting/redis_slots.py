"""Moves the rest of the gateway's keys while an administrator moves their slot to another node of a cluster.

`redis_places` calls it when the old node answers ASK. The commands are those of `redis-cli --cluster reshard`: see
"Live resharding" and "ASK redirection" in the "Redis cluster specification".

A job must see all keys on one node. Since the slot began to move, no job runs on the old node, because its script
names a key that exists nowhere. So a key that left the old node never comes back, and jobs run on the new node as soon
as the old one has none of the gateway's keys.
"""

from __future__ import annotations

from collections.abc import Sequence

from gateway.accounting.resp import Connection, Reply, RespBroken, RespError, Server

KEYS_AT_ONCE = 100
"""How many keys one command moves. Both nodes do nothing else meanwhile."""
MOVE_TIMEOUT_MS = 3000
"""How long the old node waits for the new one. It is shorter than the wait for a reply, `STATEMENT_TIMEOUT_S`."""


def move_rest(source: Connection, target: Server, error: str, beginning: str) -> None:
    """Move the keys of the slot that an error `ASK SLOT HOST:PORT` names, if they have this beginning.

    Other clients may move the same keys meanwhile. Raises RespBroken if a node refuses or cannot move
    them, and RespError if the user may not list the keys of a slot.
    """
    slot = error.split(" ")[1]
    count = source.call("CLUSTER", "COUNTKEYSINSLOT", slot)
    found = source.call("CLUSTER", "GETKEYSINSLOT", slot, count) if isinstance(count, int) and count else []
    if not isinstance(found, list):
        raise RespBroken("the cluster does not say which keys are still to be moved")
    keys = [key for key in found if isinstance(key, bytes) and key.startswith(beginning.encode())]
    for at in range(0, len(keys), KEYS_AT_ONCE):
        # A copy on the new node is the rest of an attempt that was interrupted, as no job has run there yet.
        move: list[str | bytes | int] = ["MIGRATE", target.host, target.port, "", 0, MOVE_TIMEOUT_MS, "REPLACE"]
        if target.password:
            # The old node keeps these words out of its slow log.
            move += ["AUTH2", target.user, target.password] if target.user else ["AUTH", target.password]
        try:
            source.call(*move, "KEYS", *keys[at : at + KEYS_AT_ONCE])
        except RespError as refused:
            # The text of the error may repeat the command, which has the password.
            raise RespBroken(
                f"the cluster is moving the gateway's keys to another node, and refused to move the rest "
                f"({refused.code}); let the gateway's user run MIGRATE, or wait until the move has ended"
            ) from None


def ask_target(target: Connection, commands: Sequence[Sequence[str | bytes | int]]) -> list[Reply | RespError]:
    """Send commands to the node that has the keys although the slot is not its own yet. Raises RespBroken."""
    return target.pipeline([part for command in commands for part in (("ASKING",), command)])[1::2]
