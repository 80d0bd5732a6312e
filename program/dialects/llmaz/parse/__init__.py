"""Parses Playgrounds and Services of llmaz into desired state. Start with `playground.py` and `service.py`."""
