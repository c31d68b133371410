"""For all tests: how fast hypothesis finds its examples says something about this machine, and nothing about the product."""

from hypothesis import HealthCheck, settings

settings.register_profile("any machine", deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.load_profile("any machine")
