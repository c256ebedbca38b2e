"""The command line.

Must hold: exit status 0 everything that was checked holds, 1 something is violated or in error, 2 the call, the spec or the
backend could not be used, or nothing could be checked; whatever could not be used is one line on standard error, never a
traceback. Must not: import NumPy, Hypothesis, rich or a framework before a command needs it, for help is asked often.
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

    def get_command(self, ctx: click.Context, name: str) -> click.Command | None:
        return super().get_command(ctx, name)

    def resolve_command(self, ctx: click.Context, args: list[str]) -> tuple[str | None, click.Command | None, list[str]]:
        if args and super().get_command(ctx, args[0]) is None and not args[0].startswith("-"):
            ctx.fail(f"there is no command {args[0]!r}{did_you_mean(args[0], self.commands)}")
        return super().resolve_command(ctx, args)

    def main(self, *args: Any, standalone_mode: bool = True, **extra: Any) -> Any:
        if not standalone_mode:
            return super().main(*args, standalone_mode=False, **extra)
        try:
            status = super().main(*args, standalone_mode=False, **extra)
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
            sys.stdout = None  # type: ignore[assignment]
            sys.exit(1)
        sys.exit(status if isinstance(status, int) else 0)


def _refuse(message: str) -> None:
    click.echo(f"blocklaws: {' '.join(message.split())}", err=True)
    sys.exit(2)


@click.group(cls=_Commands, context_settings={"help_option_names": ["-h", "--help"]})
@click.version_option(blocklaws.__version__, prog_name="blocklaws", message="%(prog)s %(version)s")
def cli() -> None:
    """Verify Transformer decoder blocks against a spec of invariants.

    A BACKEND is a registered name (numpy, torch, jax), package.module:attribute, path/to/file.py:attribute, or a mapping
    file (.yaml). Exit status: 0 everything that was checked holds, 1 something is violated or in error, 2 the call, the
    spec or the backend could not be used, or nothing could be checked.
    """


def main() -> None:
    """Run the command line."""
    cli(prog_name="blocklaws")


def _options(*options: Callable[[Any], Any]) -> Callable[[Any], Any]:
    def decorate(function: Any) -> Any:
        for option in reversed(options):
            function = option(function)
        return function

    return decorate


_FILE = click.Path(dir_okay=False, path_type=Path)
_backends = click.argument("backends", nargs=-1, required=True, metavar="BACKEND...")
_spec = click.option("--spec", metavar="FILE", help="A spec of your own; the built-in one otherwise.")
_block = click.option("--block", "blocks", multiple=True, metavar="NAME", help="Only this kind of block; may be repeated.")
_dtype = click.option("--dtype", "dtypes", multiple=True, metavar="NAME", help="Only this dtype; may be repeated.")
_invariant = click.option("--invariant", "invariants", multiple=True, metavar="ID", help="Only this one; may be repeated.")
_seed = click.option("--seed", type=click.IntRange(0), default=0, show_default=True, metavar="N", help="The same seed, the same run.")
_device = click.option("--device", metavar="DEV", help="Where torch and jax compute, such as cuda.")
_workers = click.option("--workers", type=click.IntRange(1, 256), default=1, show_default=True, metavar="N", help="Processes.")
_json = click.option("--json", "json_file", type=_FILE, metavar="FILE", help="Write the report as JSON.")


def _profile(default: str) -> Callable[[Any], Any]:
    return click.option("--profile", default=default, show_default=True, metavar="NAME", help=f"{_PROFILES}: how long to look.")


@cli.command()
@_options(_backends, _spec, _block, _dtype, _invariant, _profile("default"), _seed, _device)
@click.option("--known-failures", metavar="FILE", help="A YAML file of failures that are expected, each with its reason.")
@_options(_workers, _json)
@click.option("--junit", "junit_file", type=_FILE, metavar="FILE", help="Write the report as JUnit XML.")
@click.option("--quiet", "-q", is_flag=True, help="Print failures and totals only.")
@click.option("--verbose", "-v", is_flag=True, help="Print one line a case.")
@click.option("--no-progress", is_flag=True, help="Show no live progress.")
def verify(backends: Sequence[str], **options: Any) -> int:
    """Check backends against the spec."""
    from blocklaws.cli_verify import verify_and_show

    return verify_and_show(list(backends), **options)


