"""Reads a stack's config and its manifests into the services of a static fleet, which `program.fleet` registers."""
