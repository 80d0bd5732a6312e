"""A host over SSH, without an agent: connection, machine, plan, processes. Start with `host.py`."""
