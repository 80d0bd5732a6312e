"""From Playgrounds and Services of llmaz to desired state. Start with `playground.py` and `service.py`."""
