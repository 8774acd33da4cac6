from __future__ import annotations

import subprocess
import sys

from policies.cost_models.xgboost_module import load_xgboost

ALONE = """
import sys
import numpy as np
from policies.cost_models.xgboost_module import load_xgboost, spare_scikit_learn

spare_scikit_learn()
xgboost = load_xgboost()
assert "sklearn" not in sys.modules
data = xgboost.QuantileDMatrix(np.arange(8.0).reshape(8, 1), label=np.arange(8.0))
booster = xgboost.train({"nthread": 1}, data, num_boost_round=40)
assert np.abs(booster.inplace_predict(np.array([[2.0]])) - 2.0).max() < 0.5

from sklearn.ensemble import RandomForestRegressor
RandomForestRegressor(2).fit(np.arange(8.0).reshape(8, 1), np.arange(8.0))
"""


def test_in_a_process_of_ours_it_goes_without_scikit_learn_which_can_still_be_loaded() -> None:
    done = subprocess.run([sys.executable, "-c", ALONE], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr


def test_it_is_loaded_once() -> None:
    assert load_xgboost() is load_xgboost() is sys.modules["xgboost"]
