"""Sets a Hypothesis profile without a deadline, since a busy machine must not fail a property."""

from __future__ import annotations

from hypothesis import HealthCheck, settings

settings.register_profile("whatever the load", deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.load_profile("whatever the load")
