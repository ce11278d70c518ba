"""The pytest plugin: the fixture ``crash_explorer``."""
