"""Processes on a host: decided by `lifecycle.py`, carried out by one `worker.py` for each, kept by `supervisor.py`."""
