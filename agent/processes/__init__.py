"""A process on a host, whoever keeps it there: its command line, its hash, its Secrets, how it is probed and drained.

The agent (`agent.server.processes`) and the loop over SSH (`agent.client.ssh`) share these modules, so that a plan has
the same meaning for both. Nothing here imports either of them.
"""
