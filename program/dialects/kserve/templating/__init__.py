"""A subset of Go's text/template, for the expressions in configs (ADR 26)."""
