"""Desired state as frozen models; imports nothing of ours. Start with `service.py`."""
