"""Names and removal of the objects of an invitation. The host's own identity may remove them, so it ends at its use.

Used by `automation.cli.host_join` and by the agent. The binding goes first: without it the invitation's token has no
rights, also while the API server remembers the token, which it may do for ten seconds after its account is gone.
"""

from __future__ import annotations

from kubeapi.client import KubeClient
from kubeapi.errors import NotFound
from kubeapi.kinds import ROLE_BINDINGS, ROLES, SERVICE_ACCOUNTS

OBJECTS = (ROLE_BINDINGS, SERVICE_ACCOUNTS, ROLES)
"""The kinds of an invitation's objects, in the order in which they are removed."""
ANNOTATION_INVITED = "herdsman.dev/invited-until"
"""On a host's Lease: the end of an invitation that nobody has used yet."""
ANNOTATION_JOINED = "herdsman.dev/joined"
"""On a host's Lease: the time, the machine, and the fingerprint of the first token of the use of the invitation."""


def invitation_name(host: str) -> str:
    """Return the name of the objects of a host's invitation. No host has a name that begins so."""
    return f"herdsman-invite-{host}"


def end_invitation(client: KubeClient, host: str, *, namespace: str) -> bool:
    """Remove the objects of a host's invitation. Returns whether it could still be used. Raises ApiError."""
    found = False
    for kind in OBJECTS:
        try:
            client.delete(kind, namespace, invitation_name(host))
            found = found or kind is SERVICE_ACCOUNTS
        except NotFound:
            continue
    return found
