"""``python -m fleet_tune`` is the same as ``fleet-tune``."""

from fleet_tune.cli import run

if __name__ == "__main__":
    run()
