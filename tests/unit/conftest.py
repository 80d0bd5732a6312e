"""Properties are judged by what was found, not by how fast a busy machine found it."""

from __future__ import annotations

from hypothesis import HealthCheck, settings

settings.register_profile("whatever the load", deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.load_profile("whatever the load")
