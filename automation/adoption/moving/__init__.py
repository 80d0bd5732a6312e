"""Moves services from the loop to a static fleet and back: only the owner of the objects changes.

Called by `herdsman fleet`. `planning` works out whether a service can move (`described` for KServe and llmaz), `acting`
does it. docs/adr/0017-static-fleets-of-several-places.md tells the order of the steps and why.
"""
