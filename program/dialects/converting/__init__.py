"""From one dialect's YAML to another's, by way of a description that belongs to none. `herdsman convert` calls it.

`described` says what a service is; each dialect has one reader into it and one writer out of it. What a reader does not
understand and what a writer cannot say is named as lost, by path: nothing is left out in silence.
"""
