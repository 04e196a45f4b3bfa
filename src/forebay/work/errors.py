"""What a handler may raise to say more than "it failed"."""

from datetime import timedelta

from forebay.core.instant import Span, from_seconds, micros


class Drop(Exception):
    """Trying again is useless: the job goes to the dead letters at once."""


class Snooze(Exception):
    """Not now: call me again after so many seconds. No life is used."""

    def __init__(self, after: float | timedelta, reason: str = "") -> None:
        super().__init__(reason or f"snoozed for {after}")
        self.after: Span = micros(after) if isinstance(after, timedelta) else from_seconds("Snooze", after)
