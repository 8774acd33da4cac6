"""Pruner and MoA-Pruner (Qiao et al.)."""

from __future__ import annotations

from dataclasses import replace

from policies.cost_models.moa import MOMENTUM
from policies.cost_models.registry import PACM
from policies.search.acquisition import PredictedMean
from policies.search.allocation import JointSketches
from policies.search.bandits import GradientTasks
from policies.search.draft import DraftSettings
from policies.search.exploration import FixedEpsilon
from policies.search.generators import LatentGenerator
from policies.search.methods.method import Method
from policies.search.trainer import Training

PRUNER = Method(
    name="pruner",
    source="Pruner: latent schedule explorer on the analyzer, verified by PaCM, epsilon 0.1",
    tasks=GradientTasks(),
    sketches=JointSketches(),
    generator=LatentGenerator(
        DraftSettings(size=512, population=1536, generations=3, mutation=0.85, variant_rows=1), initial=50
    ),
    acquisition=PredictedMean(),
    exploration=FixedEpsilon(0.1),
    training=Training(PACM),
    batch=10,
    by_round=True,
)
"""Pruner, Algorithm 1, section 4 and its code: a genetic search on the symbol-based analyzer (population 1,536, two
steps, mutation 0.85) drafts 512 candidates, 50 random ones join them (line 10; the paper gives no number, its code
wants at least 50), PaCM verifies all of them, rounds of ten measurements of which a tenth is random, Ansor's gradient
over the tasks. The draft is new each round (the paper's code renews it every second round), and is not bred further on
the cost model. PaCM reads the paper's features, ours with ``pruner:pacm-analyzer``. The analyzer is ours, without its
calibration: on CUDA equation 1 with a bounded L0 term and the start of each kernel, on CPUs a model of its own. With
``pruner:equation-1`` it is equation 1 as published."""

MOA_PRUNER: Method = replace(
    PRUNER,
    name="moa-pruner",
    source="MoA-Pruner: Pruner with momentum online adaptation of a pre-trained PaCM, momentum 0.99",
    training=Training(PACM, momentum=MOMENTUM),
    starts_from="pretrained-pacm",
)
"""Pruner with section 4.3. Its first siamese model is a pre-trained PaCM: that of ``--transfer-from``, else on x86 CPUs
the one that comes with fleet-tune. Without one it is the result of the first training."""
