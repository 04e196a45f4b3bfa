"""How long the models of stores on disks and servers run: a fifth of the profile's examples, or all for evidence."""

from typing import Final

from hypothesis import settings

_FULL: Final = 20_000
_EXAMPLES: Final = settings().max_examples

HISTORIES: Final = settings(
    settings(),
    max_examples=_EXAMPLES if _EXAMPLES >= _FULL else max(10, _EXAMPLES // 5),
    stateful_step_count=50,
    print_blob=True,
)
