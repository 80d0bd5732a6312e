"""Rules that services must obey. The loop, previews and static fleets check them before they apply a service.

A Python file in a folder of policies registers its rules with `from components.policies import rule`.
"""

from components.policies.own_rules import rule as rule
