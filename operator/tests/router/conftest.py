"""Properties are checked for truth, not for speed: other work on the machine must not fail them."""

from hypothesis import settings

settings.register_profile("kvloop-router", deadline=None)
settings.load_profile("kvloop-router")
