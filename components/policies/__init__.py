"""Rules that a service must keep, checked before anything is applied: in the loop, in previews and in static fleets.

A Python file in a folder of policies says `from components.policies import rule`.
"""

from components.policies.own_rules import rule as rule
