"""Writes the tables of docs/benchmarks.md anew from results, each between its two markers."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from bench.common import BenchError


def replace_table(text: str, name: str, table: str) -> str:
    """``text`` with what stands between the markers of ``name`` replaced by ``table``."""
    begin, end = f"<!-- bench:{name} -->", f"<!-- /bench:{name} -->"
    head, found, rest = text.partition(begin)
    _, closed, tail = rest.partition(end)
    if not (found and closed):
        raise BenchError(f"the markers {begin} and {end} are missing")
    return f"{head}{begin}\n{table.strip()}\n{end}{tail}"


def write_tables(path: Path, results: Mapping[str, Mapping[str, Any]], commands: Mapping[str, str]) -> None:
    """Rewrites the tables of every benchmark in ``results`` (by name, as JSON objects) in the file ``path``."""
    text = path.read_text()
    for name, result in results.items():
        table = _TABLES[name](result)
        text = replace_table(text, name, f"`{commands[name]}`\n\n{table}\n\n{machine_line(result)}")
    temporary = path.with_suffix(".tmp")
    temporary.write_text(text)
    temporary.replace(path)


def machine_line(result: Mapping[str, Any]) -> str:
    machine = result["details"]["machine"]
    versions = ", ".join(f"{name} {version}" for name, version in machine["versions"].items())
    return (
        f"{machine['cpu']}, {machine['cores']} cores, {machine['memory_gib']} GiB, {machine['system']}, "
        f"Python {machine['python']}, {versions}."
    )


def _rows(header: tuple[str, ...], rows: Sequence[tuple[str, ...]]) -> str:
    align = ["---"] + ["---:"] * (len(header) - 1)
    return "\n".join("| " + " | ".join(row) + " |" for row in (header, tuple(align), *rows))


def _range(figures: Mapping[str, Any], scale: float = 1.0, digits: int = 2) -> str:
    """``median (min to max)`` of a spread."""
    low, mid, high = (figures[key] * scale for key in ("min", "median", "max"))
    return f"{mid:.{digits}f} ({low:.{digits}f} to {high:.{digits}f})"


def trial_rate(result: Mapping[str, Any]) -> str:
    rows = []
    for name, figures in result["details"]["workloads"].items():
        after = [run["valid_per_minute_after_first"] for run in figures["our_runs"]]
        rows.append(
            (
                f"`{name}`",
                _range(figures["ours"], digits=0),
                "-" if None in after else f"{sum(after) / len(after):.0f}",
                _range(figures["peer"], digits=0),
                f"{figures['ratio']:.1f}",
            )
        )
    header = ("valid trials a minute", "ours", "ours after the first record", "MetaSchedule", "ratio")
    return _rows(header, rows)


def network_latency(result: Mapping[str, Any]) -> str:
    details = result["details"]
    names = {
        "ours": f"fleet-tune, {details['budget_secs'] / 60:g} min",
        "eager": "PyTorch eager",
        "compile": "torch.compile, freezing",
        "ort": "ONNX Runtime",
    }
    rows = [
        (
            names[side],
            _range(figures["secs"], scale=1e3),
            "1" if side == "ours" else f"{details['ratios'][side]:.2f}",
            f"{figures['relative_error']:.1e}",
        )
        for side, figures in details["sides"].items()
    ]
    header = (f"`{details['model']}`", "ms a run", "ours is faster by", "relative error against PyTorch")
    return _rows(header, rows)


def first_record(result: Mapping[str, Any]) -> str:
    rows = [
        (f"`{model}`", _range(figures["first_record_secs"], digits=1), _range(figures["stop_secs"], digits=1))
        for model, figures in result["details"]["models"].items()
    ]
    return _rows(("model", "s to the first record", "s from SIGTERM to the end"), rows)


def draft(result: Mapping[str, Any]) -> str:
    details = result["details"]
    names = {
        "analyzer": "analyzer alone",
        "calibrated": "calibrated",
        "with-model": "with boosted trees",
        "metaschedule": "MetaSchedule's model",
        "random": "random",
    }
    rows = [
        (f"`{task}`", *(f"{figures[scorer]:.3f}" for scorer in names))
        for task, figures in details["best_1_by_task"].items()
    ]
    rows.append(("all, by equation 3", *(f"{details['best_1'][scorer]:.3f}" for scorer in names)))
    rows.append(("its worst seed", *(f"{details['best_1_spread'][scorer]['min']:.3f}" for scorer in names)))
    header = (f"Best-1 at 1/{details['share']}, {details['calibration']} records", *names.values())
    a_call = f"{details['candidates_a_call']:,} a call"
    speeds = {
        "analyzer": f"the analyzer, {a_call}",
        "calibrated": f"calibrated, {a_call}",
        "analyzer_population": "the analyzer, a generation a call",
        "calibrated_population": "calibrated, a generation a call",
    }
    by_task = [(f"`{task}`", figures) for task, figures in details["speed_by_task"].items() if figures]
    fast = [
        (name, *(f"{figures[kind]:,.0f}" for kind in speeds))
        for name, figures in [*by_task, ("as many of each", details["speed"])]
    ]
    head = ("candidates scored a second on one core", *speeds.values())
    return _rows(header, rows) + "\n\n" + _rows(head, fast)


def replay(result: Mapping[str, Any]) -> str:
    details = result["details"]
    ranked = sorted(details["methods"], key=lambda method: details["overall"][method])
    rows = [
        (f"`{task}` ({near})", *(_quartiles(details["trials"][method][task]) for method in ranked))
        for task, near in details["dataset"]["near_best"].items()
    ]
    rows.append(("overall, geometric mean", *(_trials(details["overall"][method]) for method in ranked)))
    most = max(details["seeds"].values())
    columns = [f"`{method}`" + _of_seeds(details["seeds"][method], most) for method in ranked]
    parts = [_rows(("trials to within 5% of the best (candidates there)", *columns), rows)]
    variants = [name for name in details["trials"] if " " in name]
    if variants:
        bases = list(dict.fromkeys(name.split()[0] for name in variants))
        effects = list(dict.fromkeys(name.split()[-1] for name in variants))
        switches: list[tuple[str, ...]] = []
        for effect in effects:
            cells: list[str] = []
            for base in bases:
                switched = next(name for name in variants if name.split()[0] == base and name.split()[-1] == effect)
                with_it, without = (base, switched) if " - " in switched else (switched, base)
                cells += [_trials(details["overall"][with_it]), _trials(details["overall"][without])]
            switches.append((effect, *cells))
        columns = [f"`{base}` {state}" for base in bases for state in ("with", "without")]
        parts.append(_rows(("overall trials, effect on and off", *columns), switches))
    if details["network"]:
        together = [(name, _quartiles(figures)) for name, figures in details["network"].items()]
        parts.append(_rows(("all tasks together", "trials to within 5% of the best sum"), together))
    return "\n\n".join(parts)


def _of_seeds(seeds: int, most: int) -> str:
    """Said of a column that has fewer seeds than the others."""
    return "" if seeds == most else f", {seeds} seeds"


def _trials(count: float) -> str:
    """A mean number of trials; below ten its first decimal tells methods apart."""
    return f"{count:.0f}" if count >= 10 else f"{count:.1f}"


def _quartiles(figures: Mapping[str, float]) -> str:
    """``median (lower quartile to upper)``."""
    return f"{figures['median']:.0f} ({figures['q1']:.0f} to {figures['q3']:.0f})"


def search_time(result: Mapping[str, Any]) -> str:
    rows = [
        (
            f"`{pair['task']}`, {pair['records']} records",
            _range(pair["ours"], scale=1e3, digits=0),
            _range(pair["peer"], scale=1e3, digits=0),
            f"{pair['ratio']:.0f}",
            f"{pair['our_train_secs'] * 1e3:.0f}",
            f"{pair['peer_train_secs'] * 1e3:.0f}",
        )
        for pair in result["details"]["pairs"]
    ]
    header = ("ms a batch of 64", "ours", "MetaSchedule", "ratio", "our training", "MetaSchedule's training")
    return _rows(header, rows)


def measure_cost(result: Mapping[str, Any]) -> str:
    details = result["details"]
    names = {"ours": "ours", "metaschedule": "MetaSchedule's settings", "fixed": "500 runs"}
    rows = []
    for name, task in details["tasks"].items():
        secs = [f"{task['device_secs'][side] / task['candidates'] * 1e3:.1f}" for side in names]
        regret = [f"{task['regret'][side]:.2%}" for side in names]
        stopped = ", ".join(f"{count} {why}" for why, count in sorted(task["stopped"].items()))
        rows.append((f"`{name}` ({task['candidates']})", *secs, *regret, f"{stopped}, {task['confirmed']} confirmed"))
    overall = [f"{details['device_secs_per_candidate'][side] * 1e3:.1f}" for side in names]
    mean = [f"{details['mean_regret'][side]:.2%}" for side in names]
    rows.append((f"all ({details['candidates']})", *overall, *mean, f"ratio {result['ratio']:.1f}"))
    header = (
        "device ms a candidate",
        *names.values(),
        *(f"regret, {name}" for name in names.values()),
        "how ours ended",
    )
    table = _rows(header, rows)
    shortened = sum(task["shortened"] for task in details["tasks"].values())
    error = max(task["judge_error"] for task in details["tasks"].values())
    return (
        f"{table}\n\nThe judge's costs have a standard error of at most {error:.2%}. Of {shortened} candidates as many "
        "of the 500 runs were taken as fit into a second, and the time of the others is computed."
    )


def cost_model(result: Mapping[str, Any]) -> str:
    details = result["details"]
    parts = []
    for key, title in (("in_domain", "in-domain"), ("across", "across tasks")):
        counts = list(next(iter(details[key].values())))
        shown = [f"{count} records" if count != "0" else "all records" for count in counts]
        header = (f"{title}: Top-1 / Top-5 / correlation", *shown, "training, ms", "512 predicted, ms")
        rows = [
            (
                f"`{model}`",
                *(_ranking(figures[count]) for count in counts),
                " / ".join(f"{figures[count]['train_secs'] * 1e3:.0f}" for count in counts),
                f"{details['prediction_secs'][model] * 1e3:.0f}",
            )
            for model, figures in details[key].items()
        ]
        parts.append(_rows(header, rows))
    return "\n\n".join(parts)


def _ranking(figures: Mapping[str, float]) -> str:
    return f"{figures['top_1']:.3f} / {figures['top_5']:.3f} / {figures['correlation']:.2f}"


def rpc_overhead(result: Mapping[str, Any]) -> str:
    names = {
        "ours": "fleet-tune",
        "ours, checked": "fleet-tune, with the check of a new best",
        "peer": "MetaSchedule's RPCRunner",
        "peer, linked": "RPCRunner, given a linked library",
    }
    rows = [
        (
            names[side],
            _range(figures["overhead_secs"], scale=1e3, digits=1),
            _range(figures["wall_secs"], scale=1e3, digits=1),
        )
        for side, figures in result["details"]["sides"].items()
    ]
    table = _rows(("ms a measurement", "beyond the evaluator", "in all"), rows)
    return f"{table}\n\nRatio: {result['ratio']:.0f}."


def device_recovery(result: Mapping[str, Any]) -> str:
    rows = [
        (fault, f"`{figures['outcome']}`", _range(figures["secs"], digits=1), f"{figures['asked_secs']:g}")
        for fault, figures in result["details"]["faults"].items()
    ]
    return _rows(("fault", "the candidate's outcome", "s to the next good measurement", "asked"), rows)


def gpu(result: Mapping[str, Any]) -> str:
    details = result["details"]
    if result["ours"] is None:
        return f"Skipped: {details['reason']}."
    rows = []
    for name, sides in details["workloads"].items():
        secs = [sides[side].get("best_secs") for side in ("ours", "metaschedule", "pytorch")]
        rows.append((f"`{name}`", *("-" if each is None else f"{each * 1e3:.4f}" for each in secs)))
    return _rows((f"ms on {details['gpu']['name']}", "ours", "MetaSchedule", "PyTorch"), rows)


def transfer(result: Mapping[str, Any]) -> str:
    details = result["details"]
    parts = []
    for case in details["cases"].values():
        methods = list(case["methods"])
        tasks = list(case["methods"][methods[0]]["tasks"])
        rows: list[tuple[str, ...]] = [
            (
                f"`{task}`",
                *(
                    f"{case['methods'][method]['tasks'][task][side]['median']:.0f}"
                    for method in methods
                    for side in ("without", "with")
                ),
            )
            for task in tasks
        ]
        both = (f"{case['methods'][method][side]:.1f}" for method in methods for side in ("without", "with"))
        rows.append(("overall, geometric mean", *both))
        ratios = (cell for method in methods for cell in ("", f"{case['methods'][method]['ratio']:.1f} times fewer"))
        rows.append(("", *ratios))
        header = (case["what"], *(f"`{method}` {side}" for method in methods for side in ("without", "with")))
        parts.append(_rows(header, rows))
    return "\n\n".join(parts)


def moa(result: Mapping[str, Any]) -> str:
    details = result["details"]
    names = {"moa": "momentum adaptation", "fine-tune": "fine-tuning", "scratch": "from scratch"}
    numbers = list(details["arms"]["moa"])
    before = details["before"]
    parts = []
    for figure, shown in (("top_1", "Top-1"), ("top_5", "Top-5"), ("rank", "rank correlation")):
        rows = [
            (name, *(_range(details["arms"][arm][number][figure], digits=3) for number in numbers))
            for arm, name in names.items()
        ]
        records = [f"{int(number) * details['records_an_update']} records" for number in numbers]
        parts.append(_rows((f"{shown}; pre-trained and never updated: {before[figure]:.3f}", *records), rows))
    return "\n\n".join(parts)


_TABLES: dict[str, Callable[[Mapping[str, Any]], str]] = {
    "trial-rate": trial_rate,
    "network-latency": network_latency,
    "first-record": first_record,
    "draft": draft,
    "replay": replay,
    "search-time": search_time,
    "transfer": transfer,
    "moa": moa,
    "rpc-overhead": rpc_overhead,
    "device-recovery": device_recovery,
    "cost-model": cost_model,
    "measure-cost": measure_cost,
    "gpu": gpu,
}
