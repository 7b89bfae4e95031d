from hypothesis import HealthCheck, settings

# The same examples in every run, however slow the machine.
settings.register_profile("kvloop", deadline=None, derandomize=True, suppress_health_check=[HealthCheck.too_slow])
settings.load_profile("kvloop")
