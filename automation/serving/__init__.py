"""Whether replicas serve: completions, stalls, idleness, rollouts and their undoing. Start with `checks.py`."""
