"""``python -m tinyllm``."""

import sys

from tinyllm.cli import main

if __name__ == "__main__":
    sys.exit(main())
