"""Rules that a service must keep, checked before anything is applied: in the loop, in previews and in static fleets."""
