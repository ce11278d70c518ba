"""The crash-consistency harness: decides what to hurt, runs it, judges it, shows it."""
