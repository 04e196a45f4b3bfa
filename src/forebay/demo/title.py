"""The headings of the tour."""

import sys


def title(number: int, text: str) -> None:
    bold, plain = ("\033[1m", "\033[0m") if sys.stdout.isatty() else ("", "")
    print(f"\n{bold}{number}  {text}{plain}", flush=True)
