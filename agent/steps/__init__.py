"""Idempotent steps that bring a machine, local or over SSH, to a desired state and report their changes."""
