"""Idempotent steps that bring a machine, this one or one over SSH, to a wanted state, and say what they changed."""
