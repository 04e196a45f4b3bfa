"""What a checker reports: which rule, at which event of the history, about which job, in words."""

from msgspec import Struct


class Violation(Struct, frozen=True):
    """`event` is the place in the history, counted from 0; `job` is None where it is about more than one."""

    rule: str
    event: int
    job: int | None
    message: str

    def __str__(self) -> str:
        about = "" if self.job is None else f", job {self.job}"
        return f"{self.rule}: event {self.event}{about}: {self.message}"
