"""Rules for a process on a host: its command line, launch hash and Secrets, the next action, health checks and
draining.

The agent (`agent.server.processes`) and the loop over SSH (`agent.client.ssh`) share these modules, so that a plan has
the same meaning for both. These modules import neither of them.
"""
