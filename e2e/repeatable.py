"""pytest plugin: properties are checked on the same examples in every run, however slow the machine."""

from hypothesis import HealthCheck, settings

settings.register_profile("kvloop", deadline=None, derandomize=True, suppress_health_check=[HealthCheck.too_slow])
settings.load_profile("kvloop")
