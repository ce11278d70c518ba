"""The power layer: every state that a power loss may leave, judged by the subject's own resume."""
