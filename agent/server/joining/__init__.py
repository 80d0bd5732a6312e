"""How a host joins a cluster: invitations, the files of its identity, and the renewal of its token (docs/adr/0075)."""
