"""Quantiles of Student's t against the printed tables."""

from __future__ import annotations

import pytest

from policies.measuring.student_t import t_quantile

TABLES = {
    0.9995: {3: 31.599, 4: 12.924, 5: 8.610, 6: 6.869, 7: 5.959, 8: 5.408, 9: 5.041, 10: 4.781, 11: 4.587, 12: 4.437},
    0.99: {2: 31.821, 3: 6.965, 4: 4.541, 5: 3.747, 6: 3.365, 7: 3.143, 8: 2.998},
}


@pytest.mark.parametrize("probability", TABLES)
def test_quantiles_are_those_of_the_printed_tables(probability: float) -> None:
    table = TABLES[probability]
    assert {samples: t_quantile(probability, samples) for samples in table} == table
