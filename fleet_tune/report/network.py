"""Remarks on a compiled network, which reports show with its times, in lines for people."""

from __future__ import annotations

from collections.abc import Iterator

from fleet_tune.base.precision import Precision
from fleet_tune.base.results import SLOW, Fallback, FallbackKernel, InNetwork, NetworkResult
from fleet_tune.report.words import format_secs, named

_USED = {
    FallbackKernel.RECORD: "the next best of its records is used",
    FallbackKernel.FIRST_CHOICE: "the analyzer's first choice is used, measured after the tuning",
    FallbackKernel.UNSCHEDULED: "left without a schedule",
}


_AGAIN = "fleet-tune compile with these records, when it is quiet, times it again"


def network_lines(network: NetworkResult) -> Iterator[tuple[str, str, str]]:
    """Yield label, line and style of each remark: on problems, errors against the framework, times and files."""
    if network.published == "nothing":
        yield "not published", network.problem, "red"
        return
    groups: dict[tuple[str, FallbackKernel], list[Fallback]] = {}
    for each in network.fallbacks:
        groups.setdefault((each.reason, each.used), []).append(each)
    for (reason, used), members in groups.items():
        yield "fallback", f"{named([each.task for each in members])}: {reason}: {_USED[used]}", "yellow"
    if network.published == "untuned" and network.problem:
        yield "published", f"the untuned network: {network.problem}", "yellow"
    elif network.published == "untuned":
        times = f"{format_secs(network.untuned_secs)}, the tuned one {format_secs(network.tuned_secs)}"
        yield "published", f"the untuned network, which is faster here: {times}", "yellow"
    if network.max_abs_error is None:
        yield "not checked", f"the network was not compared with its framework: {network.unchecked}", "yellow"
    else:
        where = "" if network.checked_on == "this machine" else f", on device {network.checked_on}"
        error = f"{network.max_abs_error:.2g} absolute, {network.max_rel_error:.2g} relative"
        yield "largest error", f"{error}, against {network.framework}{where}", ""
        if network.precision is not None and network.mean_rel_error is not None:
            told = network.precision
            if told == Precision.AUTO:
                counts = [f"{count} in {name}" for name, count in network.converted.items()]
                told += f" ({', '.join(counts) or 'all in float32'})"
            yield "precision", f"{told}: mean error {network.mean_rel_error:.2g} relative", ""
    if network.special:
        yield "special values", f"{network.special} (docs/networks.md says what is meant to differ)", "yellow"
    if network.on_busy_host:
        told = f"other processes took {network.others_cores:.1f} of the network's processor cores while it was timed"
        yield "busy host", f"{told}: its times are not those of a quiet machine ({_AGAIN})", "yellow"
    if network.slowness >= SLOW:
        told = f"it took {network.slowness:.2f} times its estimate"
        yield "slow moment", f"{told}: the host may have been disturbed while it was timed ({_AGAIN})", "yellow"
    if network.is_throttled:
        told = f"the CPU quota of this control group stopped it in {network.throttled:.0%} of the periods"
        yield "throttled", f"{told}: its times are those of the quota", "yellow"
    if network.chosen_in_network:
        count = len(network.chosen_in_network)
        which = "one kernel, another is" if count == 1 else f"{count} kernels, others are"
        yield "chosen in network", f"{which} faster alone, but not in the network", ""
    if network.in_network is not None:
        yield "time", _where_the_time_goes(network.in_network), ""
    for library in network.libraries:
        yield "library", f"{library}: it lies beside the network, with its licences", ""
    yield "network", f"{network.folder}: network.so, its parameters, manifest.json", ""


def _where_the_time_goes(times: InNetwork) -> str:
    alone = "" if times.alone_secs is None else f" ({format_secs(times.alone_secs)} alone)"
    left_over = f"{format_secs(times.left_over_secs)} left over (calls, allocation)"
    return f"{format_secs(times.secs)}: {format_secs(times.kernels_secs)} in kernels{alone}, {left_over}"
