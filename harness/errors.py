"""What ends a command without a verdict about the subject, and with which exit code."""


class HarnessError(Exception):
    """A sentence for the user: what is wrong, where, and what to do. ``exit_code`` is 2 or 3."""

    exit_code = 2


class UsageError(HarnessError):
    """The command, the subject file or the configuration is wrong."""

    exit_code = 2


class CannotJudge(HarnessError):
    """The harness ran and could not judge: the reason is a property of the subject or the host."""

    exit_code = 3
