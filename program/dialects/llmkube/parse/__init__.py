"""From InferenceServices and Models to desired state. Start with `service.py`."""
