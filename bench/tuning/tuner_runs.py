"""The runs of both tuners on a network, by form and budget, and the networks that the runs produce."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from bench.machine import bench_env, cores
from bench.processes import run_json
from bench.tuning.pieces import Piece, model_folder
from fleet_tune.base.records.sharing.shared import SHIPPED_VARIABLE, STORE_VARIABLE

PEER = "metaschedule"
PEERS = {PEER: (), "metaschedule on our engine": ("--our-engine",)}
"""The peer's forms, with the options of :mod:`bench.peers.metaschedule_network`."""
FORMS = {"as it comes": (), "from nothing": ("--no-pretrained",)}
"""Our forms, with the options of :mod:`bench.tuning.tune_process`."""
_SHARES = (0.0, 0.125, 0.25, 0.5, 0.75)
"""Shares of the peer's time after which a network of the peer is kept too. Share 0 stands for the first network whose
kernels all have had trials. These networks show when the peer first was as fast as in the end."""
_FINISH_SECS = 1800.0
_PEER_FINISH_SECS = 7200.0
"""Seconds after its budget in which the peer has to end. They are many, since each kernel first has a batch, however
long that takes."""
_PEER_EXTRA_SECS = 600.0
"""Expected seconds of the peer beyond its budget: the end of a batch, and the compilation of its networks."""
_OUR_EXTRA_SECS = 120.0


@dataclass(frozen=True)
class TunerRun(Piece):
    """One run of a tuner with one budget."""

    form: str
    """One of :data:`FORMS` or :data:`PEERS`."""
    budget_secs: float
    moments: tuple[float, ...]
    """Seconds after which a network of the peer is kept too. Empty for our runs."""
    seed: int
    method: str = ""
    """Our search method; empty for the peer."""
    batch: int | None = None
    """Trials of a batch of the peer's scheduler, with its own builder. None for its default."""

    @property
    def name(self) -> str:
        return f"{self.model}: {self.form}, {self.budget_secs:g} s"

    @property
    def expected_secs(self) -> float:
        return self.budget_secs + (_PEER_EXTRA_SECS if self.form in PEERS else _OUR_EXTRA_SECS)

    def take(self) -> dict[str, Any]:
        limits = ["--budget-secs", str(self.budget_secs), "--seed", str(self.seed)]
        if self.form in PEERS:
            command = ["-m", "bench.peers.metaschedule_network", self.model, str(self.place), *limits]
            command += [argument for secs in self.moments for argument in ("--moment", str(secs))]
            command += [] if self.batch is None else ["--batch", str(self.batch)]
            command += PEERS[self.form]
            environment, finish_secs = bench_env(cores()), _PEER_FINISH_SECS
        else:
            out = str(self.place / "network")
            command = ["-m", "bench.tuning.tune_process", self.model, out, *limits, "--method", self.method]
            command += FORMS[self.form]
            # The shipped records are read into a store, so the form "as it comes" has an empty store.
            is_whole = self.form == "as it comes"
            records = {} if is_whole else {SHIPPED_VARIABLE: ""}
            store = str(self.place / "store.db") if is_whole else ""
            environment = bench_env(cores(), **{STORE_VARIABLE: store}, **records, **self.own_cache)
            finish_secs = _FINISH_SECS
        return run_json(command, env=environment, timeout_secs=self.budget_secs + finish_secs)

    def networks(self) -> list[dict[str, Any]]:
        """Return the networks of a run that is done, with the peer's last network at the end.

        Each has ``form``, ``secs``, ``trials``, ``device_secs``, ``folder`` and ``tasks``, the number of all tasks. The
        peer's networks have ``unscheduled``, the number of kernels without a valid trial. Ours have ``shipped``, the
        number of tasks with shipped records.
        """
        figures = self.figures()
        if self.form in PEERS:
            return [{"form": self.form, "tasks": figures["tasks"], **each} for each in figures["networks"]]
        network = {name: figures[name] for name in ("trials", "device_secs", "folder")}
        shipped = (figures["store"] or {"shipped": 0})["shipped"]
        known = {"tasks": len(figures["task_results"]), "shipped": shipped}
        return [{"form": self.form, "secs": figures["elapsed_secs"], **known, **network}]


def runs(
    models: Sequence[str],
    peer_secs: float,
    grid: Sequence[float],
    work: Path,
    seed: int = 0,
    method: str = "fleet",
    batch: int | None = None,
) -> Iterator[TunerRun]:
    """Yield all runs: for each model, first the peer's runs, then ours.

    ``grid``: our budgets in seconds; those above ``peer_secs`` are left out. ``batch``: see :attr:`TunerRun.batch`.
    """
    moments = [share * peer_secs for share in _SHARES]
    for model in models:
        folder = model_folder(work, model)
        for form in PEERS:
            own = batch if form == PEER else None  # on our engine, every kernel soon has a first batch
            place = folder / (form.replace(" ", "-") + ("" if own is None else f"-{own}"))
            yield TunerRun(model, place, form, peer_secs, tuple(moments), seed, batch=own)
        for form in FORMS:
            for secs in (each for each in grid if each <= peer_secs):
                name = f"{form.replace(' ', '-')}-{secs:g}"
                place = folder / (name if method == "fleet" else f"{name}-{method.replace(':', '-')}")
                yield TunerRun(model, place, form, secs, (), seed, method)
