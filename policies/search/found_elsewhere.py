"""Candidates of a task that were found elsewhere.

Candidates of the same workload (*seeds*) come before all others. Candidates that were adapted from the best ones of
similar tasks are tried when their prediction may be better than the search's own candidates: the best sketch of a
similar task is often a slow one here, for example if Winograd's transforms suit only one of two convolutions.
"""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Iterable, Sequence

import numpy as np

from policies.search.candidates import CandidateSet
from policies.search.prediction import Predictor
from policies.search.spaces import evaluate_rows
from policies.search.task_records import Proposal


class FoundElsewhere:
    """See the module's docstring.

    Args:
        seeds: candidates of the same workload, each as the position of a sketch and its decisions, in the order in
            which they are proposed.
        adapted: candidates adapted from similar tasks.
        predictor: predicts the candidates; its table has the records.
    """

    def __init__(
        self,
        seeds: Iterable[tuple[int, tuple[int, ...]]],
        adapted: Iterable[tuple[int, tuple[int, ...]]],
        predictor: Predictor,
    ) -> None:
        self._seeds = deque(Proposal(*each, math.inf, "found elsewhere") for each in seeds)
        self._adapted = [Proposal(*each, math.inf, "adapted") for each in adapted]
        self._predictor = predictor
        self._table = predictor.table

    def next_seeds(self, count: int) -> list[Proposal]:
        """Return the next seeds, up to ``count``, that are neither measured nor pending. They are now pending."""
        records = self._table.records
        chosen: list[Proposal] = []
        while self._seeds and len(chosen) < count:
            seed = self._seeds.popleft()
            if not records.knows(seed):
                records.mark([seed])
                chosen.append(seed)
        return chosen

    def promising(self, offered: Sequence[CandidateSet], count: int) -> list[Proposal]:
        """Return up to ``count`` adapted candidates that may be better than the others, the best first. They are now
        pending. The rest waits for better predictions.

        The prediction of such a candidate is at most one deviation behind the incumbent, or behind the best offered
        candidate if nothing has succeeded. A batch also keeps room for one of the offered candidates, unless an adapted
        one is expected to be the fastest.
        """
        records = self._table.records
        self._adapted = [each for each in self._adapted if not records.knows(each)]
        best_offered = min((float(each.mean.min()) for each in offered if len(each)), default=math.inf)
        limit = math.log(records.best_secs) if math.isfinite(records.best_secs) else best_offered
        found = []
        for each in self._adapted:
            row = evaluate_rows(records.sketches[each.sketch], np.array([each.decisions]), self._table.device)
            predicted = self._predictor.predicted(each.sketch, row)
            if predicted.mean[0] - predicted.deviation[0] <= limit:
                found.append(predicted.proposal(0, each.reason))
        found.sort(key=lambda each: each.predicted_secs)
        is_best = bool(found) and math.log(found[0].predicted_secs) < best_offered
        found = found[: count if is_best else count - 1]
        records.mark(found)
        return found


def with_adapted(proposals: Sequence[Proposal], adapted: Sequence[Proposal]) -> list[Proposal]:
    """Return a batch with the adapted candidates first, or after the first proposal if one of the proposals is expected
    to be at least as fast as the best of them. A short run measures only the first candidates of a batch."""
    own_first = bool(adapted) and any(each.predicted_secs <= adapted[0].predicted_secs for each in proposals)
    return [*proposals[:own_first], *adapted, *proposals[own_first:]]
