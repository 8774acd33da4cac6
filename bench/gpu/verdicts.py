"""What a check says of a candidate (:mod:`bench.gpu.sketch_rules`). It needs no TVM."""

VERDICTS = ("right", "wrong", "refused", "failed", "unchecked")
"""``refused``: not built. ``failed``: built, and it did not run. ``unchecked``: its task's oracle did not run."""
