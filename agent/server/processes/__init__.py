"""Processes on a host: `agent.processes.lifecycle` decides, one `worker.Worker` per process acts, and `supervisor`
keeps the workers."""
