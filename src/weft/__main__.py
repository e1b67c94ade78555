"""Run the `weft` command for `python -m weft`."""

import sys

from weft.cli.command import main

__all__ = ["main"]

if __name__ == "__main__":
    sys.exit(main())
