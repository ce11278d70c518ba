"""Settings for every test: hypothesis draws the same examples each time, and has no stopwatch."""

import signal

from hypothesis import settings

# A run in the background of a script inherits an ignored SIGINT, and so would what tests start.
signal.signal(signal.SIGINT, signal.default_int_handler)

settings.register_profile("deterministic", deadline=None, derandomize=True)
settings.load_profile("deterministic")
