"""Settings for every test: hypothesis draws the same examples each time, and has no stopwatch."""

import os
import signal
import sys

from hypothesis import settings

# A run in the background of a script inherits an ignored SIGINT, and so would what tests start.
signal.signal(signal.SIGINT, signal.default_int_handler)

settings.register_profile("deterministic", deadline=None, derandomize=True)
settings.load_profile("deterministic")

# Started in the C locale the interpreter takes UTF-8 for itself and asks its children for it by
# LC_CTYPE, so that none of them would be started as this process was.
if sys.flags.utf8_mode and os.environ.get("LC_CTYPE") == "C.UTF-8":
    del os.environ["LC_CTYPE"]
