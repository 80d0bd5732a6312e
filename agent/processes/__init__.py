"""A process on a host: its command line, hash and Secrets, the next action for it, how it is checked and drained.

The agent (`agent.server.processes`) and the loop over SSH (`agent.client.ssh`) share these modules, so that a plan has
the same meaning for both. Nothing here imports either of them.
"""
