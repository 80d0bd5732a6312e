"""Rules for a process on a host: command line, launch hash, Secrets, next action, health checks, draining.

The agent (`agent.server.processes`) and the loop over SSH (`agent.client.ssh`) share these modules, so that a plan has
the same meaning for both. These modules import neither of them.
"""
