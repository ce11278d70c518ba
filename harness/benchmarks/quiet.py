"""What a campaign tells while it runs, to nobody."""


class Quiet:
    """A :class:`harness.campaign.Progress` that says nothing."""

    def layer(self, name: str, total: int) -> None:
        """A layer begins."""

    def advance(self, *, failed: bool = False) -> None:
        """One case is done."""

    def working(self, words: str) -> None:
        """Cases are under way."""
