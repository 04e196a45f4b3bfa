"""How often this process is a fork of the one that imported this: asking the system for the pid costs more."""

import os


class Forks:
    """`count` grows in the child."""

    count = 0

    @classmethod
    def forked(cls) -> None:
        cls.count += 1


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=Forks.forked)
