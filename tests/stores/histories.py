"""How long the models of stores on disks and servers run: a fifth of the profile's examples, or all for evidence."""

import os
from typing import Final

from hypothesis import settings

_EXAMPLES: Final = settings().max_examples
_SHARE: Final = 1 if os.environ.get("FOREBAY_HYPOTHESIS_PROFILE") == "evidence" else 5

HISTORIES: Final = settings(
    settings(),
    max_examples=max(10, _EXAMPLES // _SHARE),
    stateful_step_count=50,
    print_blob=True,
)
