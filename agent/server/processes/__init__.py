"""Processes on a host: `supervisor` keeps one `worker` per process; `agent.processes.lifecycle` decides."""
