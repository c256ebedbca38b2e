"""The command line.

Must hold: exit status 0 everything that was checked holds, 1 something is violated or in error, 2 the call, the spec
or the backend could not be used, or nothing could be checked; whatever could not be used is one line on standard
error, never a traceback. Must not: import NumPy, Hypothesis, rich or a framework before a command needs it, for help
is asked often.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import click

import blocklaws
from blocklaws.errors import BlocklawsError, did_you_mean

__all__ = ["cli", "main"]

INTERRUPTED = 130
_PROFILES = "quick, default or thorough"


class _Commands(click.Group):
    """A group that ends every refusal as one line and exit status 2."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        return list(self.commands)

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        if args and self.get_command(ctx, args[0]) is None and not args[0].startswith("-"):
            ctx.fail(f"there is no command {args[0]!r}{did_you_mean(args[0], self.commands)}")
        return super().resolve_command(ctx, args)

    def main(  # type: ignore[override]
        self,
        args: Sequence[str] | None = None,
        prog_name: str | None = None,
        standalone_mode: bool = True,
        **extra: Any,
    ) -> Any:
        if not standalone_mode:
            return super().main(args, prog_name, standalone_mode=False, **extra)
        try:
            status = super().main(args, prog_name, standalone_mode=False, **extra)
        except click.UsageError as error:
            where = error.ctx.command_path if error.ctx is not None else "blocklaws"
            _refuse(f"{error.format_message()} (`{where} --help` tells more)")
        except (click.ClickException, BlocklawsError) as error:
            _refuse(error.format_message() if isinstance(error, click.ClickException) else str(error))
        except (click.Abort, KeyboardInterrupt):
            click.echo("blocklaws: interrupted", err=True)
            sys.exit(INTERRUPTED)
        except BrokenPipeError:
            # The reader has gone (`| head`). Python would complain once more when it flushes at its end.
            sys.stdout = None
            sys.exit(1)
        except OSError as error:  # a name that no file could have, a disk that is gone
            _refuse(f"{error.strerror or error}{f': {error.filename!r:.100}' if error.filename else ''}")
        sys.exit(status if isinstance(status, int) else 0)


def _refuse(message: str) -> None:
    click.echo(f"blocklaws: {' '.join(message.split())}", err=True)
    sys.exit(2)


@click.group(cls=_Commands, context_settings={"help_option_names": ["-h", "--help"]})
@click.version_option(blocklaws.__version__, prog_name="blocklaws", message="%(prog)s %(version)s")
def cli() -> None:
    """Verify Transformer decoder blocks against a spec of invariants.

    A BACKEND is a registered name (numpy, torch, jax), package.module:attribute, path/to/file.py:attribute, or a
    mapping file (.yaml). Exit status: 0 everything that was checked holds, 1 something is violated or in error, 2 the
    call, the spec or the backend could not be used, or nothing could be checked.
    """


def main() -> None:
    """Run the command line."""
    try:
        cli(prog_name="blocklaws")
    except SystemExit as end:
        _leave_threads_behind(end.code)
        raise


def _leave_threads_behind(status: str | int | None) -> None:
    """End the process at once where a backend has left threads that Python would wait for, maybe for ever."""
    import os
    import threading

    waiting = [each for each in threading.enumerate() if each is not threading.main_thread() and not each.daemon]
    if waiting and isinstance(status, int):
        click.echo(f"blocklaws: ends with {len(waiting)} threads of a backend still running", err=True)
        for stream in (sys.stdout, sys.stderr):
            if stream is not None:
                stream.flush()
        os._exit(status)


def _options(*options: Callable[[Any], Any]) -> Callable[[Any], Any]:
    def decorate(function: Any) -> Any:
        for option in reversed(options):
            function = option(function)
        return function

    return decorate


_FILE = click.Path(dir_okay=False, path_type=Path)
_backends = click.argument("backends", nargs=-1, required=True, metavar="BACKEND...")
_spec = click.option("--spec", metavar="FILE", help="A spec of your own; the built-in one otherwise.")
_block = click.option(
    "--block", "blocks", multiple=True, metavar="NAME", help="Only this kind of block; may be repeated."
)
_dtype = click.option("--dtype", "dtypes", multiple=True, metavar="NAME", help="Only this dtype; may be repeated.")
_invariant = click.option(
    "--invariant", "invariants", multiple=True, metavar="ID", help="Only this one; may be repeated."
)
_seed = click.option(
    "--seed", type=click.IntRange(0), default=0, show_default=True, metavar="N", help="The same seed, the same run."
)
_device = click.option("--device", metavar="DEV", help="Where torch and jax compute, such as cuda.")
_workers = click.option(
    "--workers",
    type=click.IntRange(1, 256),
    metavar="N",
    help="Processes  [default: up to 4 for a long run of built-in backends, else 1].",
)
_scheduler = click.option(
    "--scheduler", metavar="ADDR", help="Where cases run: a Dask scheduler (tcp://HOST:PORT), or mpi."
)
_json = click.option("--json", "json_file", type=_FILE, metavar="FILE", help="Write the report as JSON.")
_html = click.option("--html", "html_file", type=_FILE, metavar="FILE", help="Write the report as one HTML file.")
_junit = click.option("--junit", "junit_file", type=_FILE, metavar="FILE", help="Write the report as JUnit XML.")
_markdown = click.option(
    "--markdown", "markdown_file", type=_FILE, metavar="FILE", help="Write a summary for a pull request."
)
_badge = click.option("--badge", "badge_file", type=_FILE, metavar="FILE", help="Write an SVG badge.")
_quiet = click.option("--quiet", "-q", is_flag=True, help="Print failures and totals only.")
_verbose = click.option(
    "--verbose", "-v", is_flag=True, help="Print one line a case, and everything that is else cut short."
)


def _profile(default: str) -> Callable[[Any], Any]:
    return click.option(
        "--profile", default=default, show_default=True, metavar="NAME", help=f"{_PROFILES}: how long to look."
    )


@cli.command()
@_options(_backends, _spec, _block, _dtype, _invariant, _profile("default"), _seed, _device)
@click.option(
    "--known-failures", metavar="FILE", help="A YAML file of failures that are expected, each with its reason."
)
@_options(_workers, _scheduler, _json, _html)
@click.option(
    "--isolate/--no-isolate",
    default=None,
    help="Each backend in a walled process of its own, or in none; unasked, others' code runs in one without a wall.",
)
@click.option(
    "--time-limit",
    type=float,
    metavar="SECONDS",
    help="For a call in such a process (30; first calls four times that).",
)
@click.option("--memory-limit", type=int, metavar="MIB", help="For such a process (8192).")
@click.option("--shard", metavar="I/N", help="Only the I-th of N parts of the run, for `merge`.")
@click.option(
    "--timings",
    type=_FILE,
    metavar="FILE",
    help="A report by whose times the parts take equally long; the same for all.",
)
@click.option(
    "--database", multiple=True, metavar="DIR|URL", help="Share counterexamples: a folder, redis://HOST, a report."
)
@click.option("--max-time", metavar="TIME", help="Begin nothing more after this time, such as 90s, 30m or 2h.")
@click.option("--until-failure", is_flag=True, help="One seed after the other, until something fails.")
@click.option(
    "--resume", "resume_file", type=_FILE, metavar="FILE", help="Keep each verdict in FILE; where it is, go on from it."
)
@_options(_junit, _markdown, _badge, _quiet, _verbose)
@click.option("--no-progress", is_flag=True, help="Show no live progress.")
def verify(backends: Sequence[str], **options: Any) -> int:
    """Check backends against the spec."""
    from blocklaws.cli_verify import verify_and_show

    return verify_and_show(list(backends), **options)


@cli.command()
@click.argument("shards", nargs=-1, required=True, type=click.Path(path_type=Path), metavar="FILE...")
@_options(_json, _html, _junit, _markdown, _badge, _quiet, _verbose)
def merge(shards: Sequence[Path], **options: Any) -> int:
    """Join the JSON reports of all shards of one run to the report of the run.

    They must be of one run and complete: another spec, seed, profile, version or backend, a shard that is missing or
    given twice is refused. The exit status is that of the whole run.
    """
    from blocklaws.cli_merge import merge_and_show

    return merge_and_show(list(shards), **options)


@cli.command("list")
@click.argument("kind", type=click.Choice(["blocks", "invariants", "faults", "backends", "properties"]))
@_spec
def list_command(kind: str, spec: str | None) -> None:
    """Say what there is: blocks, invariants, faults, backends or properties."""
    from blocklaws.explaining import listing
    from blocklaws.spec_reading import load_spec

    entries = listing(kind, load_spec(spec))
    column = min(max((len(name) for name, _ in entries), default=0), 40)
    for name, text in entries:
        click.echo(f"{name:<{column}}  {text}")


@cli.command()
@click.argument("name")
@_spec
def explain(name: str, spec: str | None) -> None:
    """Say what an invariant, a fault, a block or a property means."""
    import shutil

    from blocklaws.explaining import explain as explanations
    from blocklaws.explaining import told
    from blocklaws.spec_reading import load_spec

    width = shutil.get_terminal_size().columns
    click.echo("\n\n".join(told(heading, fields, width) for heading, fields in explanations(name, load_spec(spec))))


@cli.command()
@click.argument("source", metavar="FILE-OR-ID")
@click.argument("chosen", metavar="[ID]", required=False)
@click.option("--case", "case_id", metavar="ID", help="The same as ID.")
@click.option("--as-test", "test_file", type=_FILE, metavar="FILE", help="Write a pytest file that reproduces it.")
@click.option(
    "--save-world", "world_file", type=_FILE, metavar="FILE", help="Write its arrays as .npz, for replay too."
)
def replay(
    source: str, chosen: str | None, case_id: str | None, test_file: Path | None, world_file: Path | None
) -> int:
    """Examine a failure again: the same example, without a search.

    FILE-OR-ID is the id that `verify` printed, a file of .blocklaws/failures, a report written with --json, or a world
    saved with --save-world (.npz). ID says which failure of a report. The backend that it names is imported. Exit
    status 1 when it still fails, 0 when it holds now.
    """
    from blocklaws.cli_replay import replay_and_show

    if chosen is not None and case_id is not None:
        raise BlocklawsError(f"the failure is named twice, as {chosen!r} and with --case; leave one out")
    return replay_and_show(source, chosen or case_id, test_file, world_file)


@cli.command()
@click.argument("old", type=click.Path(path_type=Path))
@click.argument("new", type=click.Path(path_type=Path))
@click.option(
    "--slower",
    type=click.FloatRange(1, 1000),
    default=1.5,
    show_default=True,
    metavar="RATIO",
    help="From which ratio on something is told as slower.",
)
@click.option("--fail-on", type=click.Choice(["slower"]), multiple=True, help="What is a regression too: being slower.")
@click.option("--markdown", "markdown_file", type=_FILE, metavar="FILE", help="Write a summary for a pull request.")
@click.option("--verbose", "-v", is_flag=True, help="List everything.")
def compare(old: Path, new: Path, **options: Any) -> int:
    """Say what changed from one JSON report to another, of `verify` or of `faults`.

    Exit status 1 when something got worse (newly violated or in error, newly unchecked, gone, weaker; of a kill matrix
    newly survived or a lost kill), 0 when nothing did, 2 when a file is no report.
    """
    from blocklaws.cli_compare import compare_and_show

    return compare_and_show(old, new, **options)


@cli.command()
@click.argument("backend")
@click.option("--block", metavar="NAME", help="The kind of block; that of the fixture otherwise.")
@click.option(
    "--fixture", metavar="NAME", help="A worked example of spec/fixtures, or all that a chapter prints of some."
)
@click.option(
    "--format",
    "form",
    type=click.Choice(["table", "learner", "strict"]),
    help="The stages as a table; a chapter's report for people; its records for diff.",
)
@click.option("--dtype", metavar="NAME", help="The backend's first one otherwise; float64 with a fixture.")
@_options(_spec, _seed, _device)
@click.option("--json", "as_json", is_flag=True, help="Print JSON.")
@click.option("--html", "html_file", type=_FILE, metavar="FILE", help="Write the stages as one HTML file.")
def trace(backend: str, **options: Any) -> None:
    """Show the stages of one small world beside the reference's, or what a chapter prints of its worked examples.

    With --fixture decoder-block-chapter or numerics-chapter each number is computed by BACKEND and printed as that text
    prints it, the same on every right backend.
    """
    from blocklaws.cli_trace import trace_and_show

    trace_and_show(backend, **options)


@cli.command("new-backend")
@click.argument("path", type=_FILE)
def new_backend(path: Path) -> None:
    """Write an adapter of your own to start from: it verifies as it stands."""
    import shlex

    from blocklaws.new_backend import new_backend as write

    name = write(path)
    click.echo(f"wrote {path}\ncheck it with: {shlex.join(['blocklaws', 'verify', name])}")


@cli.command()
@click.argument("kind", type=click.Choice(["spec", "report"]), default="spec")
def schema(kind: str) -> None:
    """Print a JSON Schema: of spec files, for editors, or of the JSON reports that `verify` and `faults` write."""
    import json

    if kind == "report":
        from blocklaws.report_schema import report_schema

        click.echo(json.dumps(report_schema(), indent=1))
        return
    from blocklaws.editor_schema import spec_schema

    click.echo(json.dumps(spec_schema(), indent=1))


@cli.command()
@_options(_backends, _spec, _block, _dtype)
@click.option("--fault", "faults", multiple=True, metavar="ID", help="Only this fault; may be repeated.")
@_options(_invariant, _profile("default"), _seed)
@click.option(
    "--seeds", type=click.IntRange(1), default=1, show_default=True, metavar="N", help="How many seeds, from --seed on."
)
@click.option(
    "--claims", "claims_only", is_flag=True, help="Only the invariants that claim a fault (refuted_by): much quicker."
)
@click.option("--every", is_flag=True, help="Every invariant on each backend; without it, on the first one only.")
@click.option("--first-kill", is_flag=True, help="Leave a fault as soon as one invariant has refuted it.")
@click.option(
    "--workers", type=click.IntRange(1, 256), default=None, metavar="N", help="Processes  [default: one for each core]"
)
@_options(_json, _html)
@click.option("--no-progress", is_flag=True, help="Show no live progress.")
def faults(backends: Sequence[str], **options: Any) -> int:
    """Show the kill matrix: which invariants refute which faults, planted in a built-in backend."""
    from blocklaws.cli_verify import faults_and_show

    return faults_and_show(list(backends), **options)
