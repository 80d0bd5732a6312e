"""Parses an LLMInferenceService into desired state. Start with `service.py`."""
