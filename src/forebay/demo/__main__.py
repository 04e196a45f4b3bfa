"""`python -m forebay.demo`."""

import sys

from forebay.demo.tour import main

if __name__ == "__main__":
    sys.exit(main())
