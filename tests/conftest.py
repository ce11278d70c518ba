"""Settings for every test: hypothesis draws the same examples each time, and has no stopwatch."""

from hypothesis import settings

settings.register_profile("deterministic", deadline=None, derandomize=True)
settings.load_profile("deterministic")
