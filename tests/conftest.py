"""For all tests: time never decides one. A machine under load is no reason for a property to fail."""

from hypothesis import HealthCheck, settings

settings.register_profile("dlr", deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.load_profile("dlr")
