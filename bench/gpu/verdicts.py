"""Verdicts of a check on a candidate (:mod:`bench.gpu.sketch_rules`). This module imports no TVM."""

VERDICTS = ("right", "wrong", "refused", "failed", "unchecked")
"""``refused``: not built. ``failed``: built, but did not run. ``unchecked``: there is no output of its task's oracle to
compare with."""
