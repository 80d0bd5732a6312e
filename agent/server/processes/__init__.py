"""Processes on a host: `agent.processes.lifecycle` decides, a `worker.py` for each acts, `supervisor.py` keeps them."""
