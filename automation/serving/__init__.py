"""Checks whether replicas serve: completions, stalls, idleness, rollouts and rollbacks. Start with `checks.py`."""
