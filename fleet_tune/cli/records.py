"""``fleet-tune records``: shows, copies, checks and prunes the records of a store."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

import click

from fleet_tune.cli.options import WholeNumber, json_option, run_options
from fleet_tune.report.json_output import json_line

if TYPE_CHECKING:
    from fleet_tune.base.records.sharing.shared import CopyResult
    from fleet_tune.base.records.sharing.store_place import StorePlace

_F = TypeVar("_F", bound=Callable[..., Any])
_class_option = click.option("--class", "device_class", metavar="NAME", help="Only this device class.")
_rows_option = click.option(
    "--rows", type=WholeNumber(1, 1_000_000), default=40, show_default=True, help="Rows to show of a table."
)


def _store_option(command: _F) -> _F:
    """Add ``--store``: an existing store, or the folder of a run; the store of this user by default."""
    text = "The store, a team's postgresql://..., or the output folder of a run. Default: the store of this user."
    return click.option("--store", metavar="PATH", help=text)(command)


class _OfStores(click.Group):
    """Reports errors of a store with next steps for a command on stores. The usual next steps are for a run: it could
    use another output folder, or no store."""

    def invoke(self, ctx: click.Context) -> Any:
        from fleet_tune.base.errors import DamagedStoreError, RecordStoreError

        try:
            return super().invoke(ctx)
        except RecordStoreError as error:
            from fleet_tune.base.records.sharing.shared import WITHOUT
            from fleet_tune.base.records.stores.store_errors import ANOTHER_FOLDER

            next_step = error.next_step
            for said in (WITHOUT, ANOTHER_FOLDER):
                next_step = next_step.replace(said, "name another with --store")
            if isinstance(error, DamagedStoreError) and ctx.invoked_subcommand != "merge":
                next_step += ", or save what is sound with 'fleet-tune records merge'"
            raise type(error)(error.problem, next_step) from error


@click.group(cls=_OfStores)
def records() -> None:
    """Record stores that runs share: see 'tune --store'."""


@records.command(short_help="Print the best record of every task.")
@_store_option
@_class_option
@_rows_option
@json_option
def top(store: str | None, device_class: str | None, rows: int, as_json: bool) -> None:
    """Print the best of every task, and whether it counts for runs of this version."""
    from fleet_tune.base.records.sharing.maintenance import StoreMaintenance
    from fleet_tune.report.run import make_console
    from fleet_tune.report.stores import render_top, top_json
    from fleet_tune.runs.shared_store.upkeep import store_at, versions_now

    with StoreMaintenance(store_at(_named(store))) as reader:
        found = [each for each in reader.top(versions_now()) if device_class in (None, each.task.device_class.name)]
    make_console(stderr=as_json).print(render_top(found, rows))
    if as_json:
        click.echo(top_json(found))


@records.command(short_help="Print counts of a store.")
@_store_option
@json_option
def stats(store: str | None, as_json: bool) -> None:
    """Print counts by device class, workload and outcome, and of what the records are."""
    from fleet_tune.base.records.sharing.maintenance import StoreMaintenance
    from fleet_tune.report.run import make_console
    from fleet_tune.report.stores import render_statistics, statistics_json
    from fleet_tune.runs.shared_store.upkeep import store_at

    with StoreMaintenance(store_at(_named(store))) as reader:
        statistics = reader.statistics()
    make_console(stderr=as_json).print(render_statistics(statistics))
    if as_json:
        click.echo(statistics_json(statistics))


@records.command(short_help="Write records of a store to a file or folder.")
@click.argument("out", type=click.Path(path_type=Path))
@_store_option
@click.option(
    "--format",
    "form",
    type=click.Choice(["lines", "metaschedule", "parquet"]),
    default="lines",
    show_default=True,
    help="JSON lines, which 'import' reads; or TVM's own database in a folder OUT, each class in its own.",
)
@click.option(
    "--keep-best",
    type=WholeNumber(1),
    metavar="N",
    help="JSON lines only: the N best candidates of each task and of what it depends on, one record each.",
)
@_class_option
@json_option
def export(
    out: Path, store: str | None, form: str, keep_best: int | None, device_class: str | None, as_json: bool
) -> None:
    """Write the records of a store to OUT: a file of JSON lines, deflated where its name ends in .gz,
    TVM's own, or a Parquet file (one row for each record)."""
    from fleet_tune.base.errors import RequestError
    from fleet_tune.base.records.sharing.shared import CopyResult
    from fleet_tune.report.run import plural
    from fleet_tune.runs.shared_store import formats, upkeep

    if keep_best is not None and form != "lines":
        raise RequestError("--keep-best is for files of lines", "omit it, or the --format")
    if form == "metaschedule":
        written = formats.export_metaschedule(_named(store), out.absolute(), device_class)
        if as_json:
            databases = {each.device_class: {"folder": str(each.folder), "records": each.records} for each in written}
            click.echo(json_line({"records": sum(each.records for each in written), "databases": databases}))
        for each in [] if as_json else written:
            click.echo(f"{plural(each.records, 'record')} of {each.device_class} written: {each.folder}")
        return
    if form == "parquet":
        count = formats.export_parquet(_named(store), out.absolute(), device_class)
        _print_copied(CopyResult(count, 0), "written", as_json)
        return
    moved = upkeep.export(_named(store), out, keep_best, device_class)
    _print_copied(moved.copied, "written", as_json)


@records.command("import", short_help="Take records into a store.")
@click.argument("source", type=click.Path(path_type=Path))
@_store_option
@click.option(
    "--class", "device_class", metavar="NAME", help="Device class on which a MetaSchedule database was measured."
)
@json_option
def import_command(source: Path, store: str | None, device_class: str | None, as_json: bool) -> None:
    """Take records into a store: of a file that 'export' wrote, or the schedules of a folder with a MetaSchedule
    database, or several. Lines that cannot be read are told and skipped."""
    from fleet_tune.base.errors import RequestError
    from fleet_tune.report.run import plural
    from fleet_tune.runs.shared_store import formats, upkeep

    more: dict[str, int] = {}
    if folders := formats.metaschedule_folders(source):
        moved, own_sketches = formats.import_metaschedule(folders, _named(store), device_class)
        more = {"own_sketches": own_sketches}
        if own_sketches and not as_json:
            click.echo(f"{plural(own_sketches, 'record')} of no sketch of ours: kept with sketches of their own")
    elif device_class is not None:
        raise RequestError(f"{source} has no MetaSchedule database, and only that needs a --class", "omit it")
    else:
        moved = upkeep.import_file(source, _named(store))
    _changed(store)
    for line in moved.skipped[:_SKIPPED_LINES]:
        click.echo(f"skipped: {line}", err=True)
    if len(moved.skipped) > _SKIPPED_LINES:
        click.echo(f"skipped: {len(moved.skipped) - _SKIPPED_LINES} more lines", err=True)
    _print_copied(moved.copied, "new", as_json, skipped=len(moved.skipped), **more)


@records.command(short_help="Copy records of other stores into a store.")
@click.argument("sources", nargs=-1, required=True, metavar="SOURCE...", type=click.Path(path_type=Path))
@_store_option
@json_option
def merge(sources: tuple[Path, ...], store: str | None, as_json: bool) -> None:
    """Copy the records of each SOURCE, a store or the output folder of a run, into a store."""
    from fleet_tune.base.records.sharing.shared import CopyResult
    from fleet_tune.runs.shared_store import upkeep

    moved = [each for _, each in upkeep.merge(sources, _named(store))]
    _changed(store)
    for line in (line for each in moved for line in each.skipped):
        click.echo(f"warning: {line}", err=True)
    copied = CopyResult(sum(each.copied.records for each in moved), 0, sum(each.copied.left_out for each in moved))
    _print_copied(copied, "new", as_json)


@records.command()
@_store_option
@json_option
def verify(store: str | None, as_json: bool) -> int:
    """Read everything of a store, and name what is damaged. Ends with code 2 where something is."""
    from fleet_tune.base.records.sharing.maintenance import StoreMaintenance
    from fleet_tune.report.run import plural
    from fleet_tune.report.stores import integrity_lines
    from fleet_tune.runs.shared_store.upkeep import store_at

    file = store_at(_named(store))
    with StoreMaintenance(file) as reader:
        found = reader.integrity()
    if as_json:
        body = {"records": found.records, "damaged": found.damaged, "file": found.file, "orphans": found.orphans}
        click.echo(json_line({"store": str(file), "sound": found.is_sound, **body}))
    elif found.is_sound:
        click.echo(f"{plural(found.records, 'record')}, all of them sound: {file}")
    if found.is_sound:
        return 0
    for line in integrity_lines(found):
        click.echo(line, err=True)
    used = "no run can use it" if found.file else f"what is sound of its {plural(found.records, 'record')} is used"
    click.echo(f"error: {file} is damaged; {used}", err=True)
    click.echo("next: 'fleet-tune records merge' copies what is sound into a new store", err=True)
    return 2


@records.command(short_help="Remove records from a store.")
@_store_option
@_class_option
@click.option("--older-than", metavar="TIME", help="Records that were measured so long ago, as 90d or 12h.")
@click.option("--keep-best", type=WholeNumber(min=0), metavar="N", help="Keep the N best candidates of each task.")
@click.option("--other-versions", is_flag=True, help="Records of other versions of TVM or of fleet-tune.")
@click.option("--dry-run", is_flag=True, help="Print their number; remove nothing.")
@json_option
def prune(
    store: str | None,
    device_class: str | None,
    older_than: str | None,
    keep_best: int | None,
    other_versions: bool,
    dry_run: bool,
    as_json: bool,
) -> None:
    """Remove the records to which all given rules apply. At least one rule is needed.

    --keep-best keeps what was found wrong, too, and the best of each origin by itself.
    """
    from fleet_tune.base.config.values import duration
    from fleet_tune.base.errors import RequestError
    from fleet_tune.base.records.sharing.maintenance import PruneRule
    from fleet_tune.report.run import plural
    from fleet_tune.runs.shared_store import upkeep

    if older_than is None and keep_best is None and not other_versions:
        raise RequestError("nothing says what is to be pruned", "give --older-than, --keep-best or --other-versions")
    rule = PruneRule(
        before_unix_secs=None if older_than is None else upkeep.older_than(duration(older_than)),
        keep_best=keep_best,
        versions=upkeep.versions_now() if other_versions else None,
        device_class=device_class,
    )
    removed, count = upkeep.pruned(_named(store), rule, dry_run, _place(store).server)
    if as_json:
        click.echo(json_line({"records": count, "removed": 0 if dry_run else removed, "matching": removed}))
    else:
        click.echo(f"{removed} of {plural(count, 'record')} {'would be' if dry_run else 'were'} removed")


@records.command(short_help="Print which records of a task count, and why.")
@click.argument("task")
@_store_option
@_class_option
@run_options("fleet")
@_rows_option
@json_option
def why(task: str, store: str | None, device_class: str | None, fleet: Path | None, rows: int, as_json: bool) -> None:
    """Print whether the records of TASK count for runs of this version, and why not.

    TASK is the name of a workload, or the beginning of its hash. With --fleet also target, processor, threads,
    microcode and drivers of its devices are compared, which are asked.
    """
    from fleet_tune.report.run import make_console
    from fleet_tune.report.stores import render_why, why_json
    from fleet_tune.runs.shared_store import upkeep
    from fleet_tune.runs.shared_store.shipped import shipped

    now = None
    if fleet is not None:
        from fleet_tune.base.config.fleet_file import load_fleet
        from fleet_tune.runs.fleet.fleet_probe import probe_fleet
        from fleet_tune.runs.origins import origin_of

        fingerprints = probe_fleet(load_fleet(fleet)).values()
        now = {each.device_class.name: origin_of(each) for each in fingerprints}
    found = upkeep.why(_named(store), task, device_class, now)
    told = {each.id: shipped().told(each) for each, _ in found}
    make_console(stderr=as_json).print(render_why(found, rows, told, versions_alone=now is None))
    if as_json:
        click.echo(why_json(found, told))


_SKIPPED_LINES = 20
_AWAY = "fleet_tune.store.away"


def _place(store: str | None) -> StorePlace:
    """Return the place of the store. Raises :class:`RequestError` if there is none."""
    from fleet_tune.base.errors import RequestError
    from fleet_tune.base.records.sharing.shared import default_place
    from fleet_tune.base.records.sharing.store_place import place_of

    place = default_place() if store is None else place_of(store)
    if place is None:
        raise RequestError("there is no store of this user", "name one with --store")
    return place


def _named(store: str | None) -> Path:
    """Return the file of the named store. For a team's store, this is the local copy, synchronized with the server."""
    from fleet_tune.base.records.sharing.team import sync_team

    place = _place(store)
    team = sync_team(place)
    click.get_current_context().meta[_AWAY] = team is not None and team.is_away
    return place.path


def _changed(store: str | None) -> None:
    """Send changes in the copy of a team's store to the server. A later synchronization sends them if the server did
    not answer :func:`_named`."""
    from fleet_tune.base.records.sharing.team import sync_team

    if not click.get_current_context().meta.get(_AWAY):
        sync_team(_place(store))


def _print_copied(copied: CopyResult, word: str, as_json: bool, **more: int) -> None:
    from fleet_tune.report.run import plural

    if as_json:
        click.echo(json_line({"records": copied.records, "left_out": copied.left_out, **more}))
        return
    click.echo(f"{plural(copied.records, 'record')} {word}")
    if copied.left_out:
        click.echo(
            f"skipped: {plural(copied.left_out, 'record')} of runs that do not say what they depend on", err=True
        )
