"""Programs that are measured, or that measure, each in a process of its own.

They stand for a user's program and may use what such a program would, tinyllm's writer included.
"""
