"""Parses InferenceServices and Models into desired state. Start with `service.py`."""
