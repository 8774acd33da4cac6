"""``python -m fleet_tune`` is the same as ``fleet-tune``."""

import sys

from fleet_tune.cli import main

if __name__ == "__main__":
    sys.exit(main())
