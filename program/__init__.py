"""Desired state, the dialects that parse custom resources into it, and the runtimes that turn it into commands."""
