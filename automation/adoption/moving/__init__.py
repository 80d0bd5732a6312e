"""Moves services from the loop to a static fleet and back: only the owner of the objects changes.

Called by `herdsman fleet`. `planning` works out whether a service can move, `comparing` finds what a move would change,
`acting` carries the move out. docs/adr/0017-static-fleets-of-several-places.md gives the order of the steps.
"""
