"""--transfer-from and 'fleet-tune model': every kind of source, and what a user can get wrong."""

from __future__ import annotations

import dataclasses
import json
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import pytest

from fleet_tune.base.errors import TransferError, UserError
from fleet_tune.base.records.datasets.dataset import load, save
from fleet_tune.base.records.datasets.sources import check_source
from fleet_tune.base.results import Transferred
from fleet_tune.base.search_task import SearchTask
from fleet_tune.base.task_data import Dataset, TaskData
from fleet_tune.cli.main import main
from fleet_tune.runs.transfer.transfer_prior import (
    TransferPrior,
    TransferSource,
    builtin_applies,
    read_source,
    what_applies,
)
from fleet_tune.training import cost_models
from policies.cost_models.architectures import PacmModel
from policies.cost_models.boosted import GradientBoostedModel, InvariantTreesModel, LoopTreesModel
from policies.cost_models.registry import BOOSTED_INVARIANT, load_model
from policies.cost_models.statement_trees import StatementTreesModel
from policies.search.methods import method_named
from policies.search.trainer import Trainer

DATA = Path(__file__).parents[4] / "bench" / "data"


def small(data: TaskData, count: int = 64) -> TaskData:
    """The first candidates of a task."""
    rows = np.arange(count)
    return TaskData(
        task=data.task,
        abstraction=data.abstraction,
        sketches=data.sketches,
        sketch_of=data.sketch_of[rows],
        decisions=tuple(matrix[: int((data.sketch_of[rows] == at).sum())] for at, matrix in enumerate(data.decisions)),
        run_secs=data.run_secs[rows],
        build_secs=data.build_secs[rows],
        measure_secs=data.measure_secs[rows],
        outcome=data.outcome[rows],
        details=data.details[:count],
    )


@pytest.fixture(scope="module")
def here() -> Dataset:
    return load(DATA / "other-tasks" / "znver5-2.ftd")


@pytest.fixture(scope="module")
def there() -> Dataset:
    return load(DATA / "other-class" / "avx2-1.ftd")


@pytest.fixture(scope="module")
def other(tmp_path_factory: pytest.TempPathFactory, there: Dataset) -> Path:
    """Three tasks of another device class, 64 candidates each."""
    path = tmp_path_factory.mktemp("data") / "other.ftd"
    save(Dataset("some", there.fingerprints, tuple(small(data) for data in there.tasks[:3])), path)
    return path


def entries(dataset: Dataset, count: int = 2) -> tuple[SearchTask, ...]:
    return tuple(SearchTask(data.task, data.sketches, data.abstraction) for data in dataset.tasks[:count])


def with_priors(
    entries: Sequence[SearchTask], knowledge: TransferSource, method: str
) -> tuple[list[SearchTask], Transferred]:
    """The tasks with what they start from, and what people see of it."""
    bare = [dataclasses.replace(entry, sketches=()) for entry in entries]  # what is known before they are described
    teaching = TransferPrior(knowledge, method_named(method), 0, bare)
    return [teaching.with_prior(entry) for entry in entries], teaching.summary(entries)


def test_a_dataset_teaches_tasks_that_it_does_not_have(other: Path, here: Dataset) -> None:
    warm, transferred = with_priors(entries(here), read_source(other), "fleet")
    for entry in warm:
        assert isinstance(load_model(entry.prior), InvariantTreesModel)
    assert transferred == Transferred(str(other), candidates=192, left_out=0, own_tasks=0, shared_tasks=2)


def test_the_same_workload_elsewhere_teaches_a_model_of_its_own(other: Path, here: Dataset) -> None:
    main_tasks = load(DATA / "znver5-2.ftd")
    assert read_source(other).tasks[0].task.workload.hash == main_tasks[0].task.workload.hash
    known, unknown = entries(main_tasks, 1)[0], entries(here, 1)[0]
    (own, shared), transferred = with_priors((known, unknown), read_source(other), "fleet")
    assert (own.own_prior, shared.own_prior) == (True, False)
    assert type(load_model(own.prior)) is GradientBoostedModel  # of the task's own features, which no other task shares
    assert isinstance(load_model(shared.prior), InvariantTreesModel)
    assert (transferred.own_tasks, transferred.shared_tasks) == (1, 1)


@pytest.mark.parametrize(("method", "kind"), [("autotvm", LoopTreesModel), ("ansor", StatementTreesModel)])
def test_a_papers_trees_start_from_their_own_kind(method: str, kind: type, other: Path, here: Dataset) -> None:
    """AutoTVM's equation 4: the global model is of the representation that all tasks share, also for a workload that
    was measured before; our analyzer has no say in it."""
    known, unknown = entries(load(DATA / "znver5-2.ftd"), 1)[0], entries(here, 1)[0]
    warm, transferred = with_priors((known, unknown), read_source(other), method)
    for entry in warm:
        assert type(load_model(entry.prior)) is kind
        assert not entry.own_prior
    assert (transferred.own_tasks, transferred.shared_tasks) == (0, 2)


def test_without_a_source_our_method_starts_from_the_model_that_comes_along(here: Dataset) -> None:
    own = entries(here)
    assert builtin_applies(own, method_named("fleet"))
    assert not builtin_applies(own, method_named("autotvm"))  # a paper's method starts as it was published
    found = what_applies(own, method_named("fleet"), None, pretrained=True)
    assert found is not None
    warm, transferred = with_priors(own, found, "fleet")
    assert transferred == Transferred("pretrained", 0, 0, 0, 2)
    assert all(entry.prior for entry in warm)
    assert what_applies(own, method_named("fleet"), None, pretrained=False) is None
    assert what_applies(own, method_named("autotvm"), None, pretrained=True) is None


def test_moa_pruner_starts_from_the_pacm_that_comes_along(here: Dataset) -> None:
    """Algorithm 1 of Pruner has a pre-trained model among its inputs."""
    own = entries(here)
    found = what_applies(own, method_named("moa-pruner"), None, pretrained=True)
    assert found is not None
    warm, transferred = with_priors(own, found, "moa-pruner")
    assert transferred == Transferred("pretrained-pacm", 0, 0, 0, 2)
    prior = load_model(warm[0].prior)
    assert isinstance(prior, PacmModel)
    training = method_named("moa-pruner").training
    assert training is not None
    first = Trainer(training, prior).first
    assert isinstance(first, PacmModel)  # itself, and not as the global model beside another
    assert what_applies(own, method_named("pruner"), None, pretrained=True) is None


def test_what_cannot_be_transferred_is_told(here: Dataset, other: Path, tmp_path: Path) -> None:
    own = entries(here, 1)
    with pytest.raises(TransferError, match="no cost model"):
        with_priors(own, read_source(other), "random")
    with pytest.raises(TransferError, match="never trained here"):
        what_applies(own, method_named("pruner:offline"), None, pretrained=True)
    for_gpu = TransferSource("gpu", model=read_source(Path("pretrained")).model, device_kind="cuda")
    with pytest.raises(UserError, match="fleet has none"):
        with_priors(own, for_gpu, "fleet")
    (tmp_path / "text").write_text("no source")
    with pytest.raises(TransferError, match="is no record database"):
        check_source(tmp_path / "text")
    with pytest.raises(TransferError, match="does not exist"):
        check_source(tmp_path / "none")
    with pytest.raises(TransferError, match=r"has no records\.db"):
        check_source(tmp_path)


def test_kinds_of_sources_are_told_apart(tmp_path: Path, other: Path) -> None:
    assert check_source(other) == "dataset"
    assert check_source(Path("pretrained")) == "model"
    (tmp_path / "records.db").write_bytes(b"SQLite format 3\0")
    assert check_source(tmp_path) == check_source(tmp_path / "records.db") == "records"
    for name in ("database_workload.json", "database_tuning_record.json"):
        (tmp_path / name).touch()
    assert check_source(tmp_path) == "metaschedule"


# -- the commands ---------------------------------------------------------------------------------------------------


def command(capsys: pytest.CaptureFixture[str], *arguments: str | Path) -> tuple[int, str, str]:
    code = main(["model", *map(str, arguments)])
    told = capsys.readouterr()
    return code, told.out, told.err


def test_pretraining_loads_neither_ray_nor_tvm(other: Path, tmp_path: Path) -> None:
    code = "import sys; from fleet_tune.cli.main import main; code = main(sys.argv[1:]); "
    code += "print(code, [name for name in ('ray', 'tvm', 'actors') if name in sys.modules])"
    arguments = ["model", "pretrain", str(other), "--compact", "--out", str(tmp_path / "made.safetensors")]
    child = subprocess.run(
        [sys.executable, "-c", code, *arguments], cwd=DATA.parents[1], capture_output=True, text=True, check=True
    )
    assert child.stdout.splitlines()[-1] == "0 []"


def test_a_model_is_pretrained_evaluated_and_finetuned(
    other: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    made, tuned = tmp_path / "made.safetensors", tmp_path / "tuned.safetensors"
    code, out, _ = command(capsys, "pretrain", other, "--compact", "--out", made, "--json")
    assert code == 0
    manifest = json.loads(out.splitlines()[-1])
    assert (manifest["model"], manifest["data"][0]["candidates"]) == ("boosted-invariant", 192)
    code, out, _ = command(capsys, "evaluate", made, other, "--json")
    assert code == 0
    mean = json.loads(out.splitlines()[-1])["mean"]
    assert mean["rank_correlation"] == pytest.approx(manifest["metrics"]["seen_rank_correlation"])
    code, out, _ = command(capsys, "finetune", made, other, "--out", tuned, "--json")
    assert code == 0
    assert len(json.loads(out.splitlines()[-1])["data"]) == 2  # what it was pre-trained on, and what came then
    code, _, err = command(capsys, "finetune", made, other, "--moa", "--out", tuned)
    assert code == 2
    assert "no weights to adapt by momentum" in err


def test_the_same_data_and_seed_make_the_same_model(other: Path, tmp_path: Path) -> None:
    one, two = tmp_path / "one.safetensors", tmp_path / "two.safetensors"
    for path in (one, two):
        cost_models.pretrain([other], path, BOOSTED_INVARIANT, 7, compact=True)
    assert one.read_bytes() == two.read_bytes()


def test_the_model_that_comes_along_can_be_exported(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    out = tmp_path / "out.safetensors"
    assert command(capsys, "export", "pretrained", "--out", out)[0] == 0
    assert read_source(out).model is not None
    code, _, err = command(capsys, "export", tmp_path, "--out", out)
    assert code == 2
    assert "adapted models of none" in err


def test_mistakes_are_told_in_two_lines(other: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    out = tmp_path / "out.safetensors"
    for arguments, told in (
        (("pretrain", other, "--cost-model", "oracle", "--out", out), "there is no cost model 'oracle'"),
        (("pretrain", other, "--out", tmp_path / "out.bin"), "let the name end with .safetensors"),
        (("pretrain", other, "--out", tmp_path / "no" / "out.safetensors"), "no such folder"),
        (("pretrain", tmp_path / "none.ftd", "--out", out), "does not exist"),
        (("pretrain", "pretrained", "--out", out), "is a model, not measured candidates"),
        (("evaluate", tmp_path / "none.safetensors", other), "No such file"),
    ):
        code, _, err = command(capsys, *arguments)
        assert code == 2
        assert told in err
        assert len(err.strip().splitlines()) == 2
    assert not out.exists()


def test_the_quality_of_a_perfect_order() -> None:
    class Oracle:
        views = ("invariant",)

        def __init__(self, log_secs: np.ndarray) -> None:
            self._log_secs = log_secs

        def predict(self, features: object) -> tuple[np.ndarray, np.ndarray]:
            del features
            return self._log_secs, np.zeros_like(self._log_secs)

    (data,) = load(DATA / "other-tasks" / "znver5-2.ftd").tasks[:1]
    order = np.concatenate([data.rows(at) for at in range(len(data.sketches))])
    (found,) = cost_models.quality(Oracle(np.log(data.cost_secs[order])), [data])  # type: ignore[arg-type]
    assert (found.top_1, found.top_5, found.rank_correlation) == pytest.approx((1.0, 1.0, 1.0))
