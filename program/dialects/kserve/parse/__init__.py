"""From an LLMInferenceService to desired state. Start with `service.py`."""
