"""What several benchmarks' tests share."""

from __future__ import annotations

import pytest

from fleet_tune.base.task_data import TaskData
from tests.bench.made_up import made_up


@pytest.fixture(scope="module")
def data() -> TaskData:
    return made_up("matmul", 140)
