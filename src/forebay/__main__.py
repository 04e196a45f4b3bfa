"""`python -m forebay` is `forebay`."""

import sys

from forebay.cli import main

if __name__ == "__main__":
    sys.exit(main())
