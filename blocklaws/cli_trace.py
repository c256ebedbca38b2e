"""The command ``trace``: from the names on the command line to the table, the records or the JSON.

Must hold: standard output is the trace's alone, so that two of them can be compared by `diff`; what is missing in one
is told on standard error. Must not: compute.
"""

from __future__ import annotations

import json
from pathlib import Path

import click

from blocklaws.chapter_trace import UNAVAILABLE, fixture_text, trace_fixture
from blocklaws.cli_verify import quiet_stdout
from blocklaws.errors import BlocklawsError
from blocklaws.files import check_writable, write_text
from blocklaws.models.subject import only_blocks
from blocklaws.running import resolve
from blocklaws.spec_reading import load_spec
from blocklaws.tracing import trace

__all__ = ["trace_and_show"]


def trace_and_show(
    backend: str,
    *,
    block: str | None,
    fixture: str | None,
    form: str | None,
    dtype: str | None,
    spec: str | None,
    seed: int,
    device: str | None,
    as_json: bool,
    html_file: Path | None,
) -> None:
    """Trace a backend, each variant of a mapping by itself, print it, and write the page where one is asked for."""
    check_writable(html_file)
    if fixture is None:
        if block is None:
            raise BlocklawsError("give the kind of block with --block, or a worked example with --fixture")
        if form not in (None, "table"):
            raise BlocklawsError(f"--format {form} is of a chapter; name it with --fixture")
    elif seed:
        raise BlocklawsError("--seed draws a world, and a fixture is one; leave --seed or --fixture out")
    if html_file is not None and form not in (None, "table"):
        raise BlocklawsError(f"--html shows stages, and --format {form} prints records; leave one of them out")
    if html_file is not None and fixture is not None:
        form = "table"
    loaded = load_spec(spec)
    found, problems = [], []
    with quiet_stdout():
        for subject in resolve([backend], device):
            only_blocks(subject, ", which have no stages to trace")
            try:
                found.append(
                    trace(subject, loaded, block or "", dtype, seed)
                    if fixture is None
                    else trace_fixture(subject, loaded, fixture, form, block, dtype)
                )
            except BlocklawsError as error:
                problems.append(error)
    if not found:
        raise problems[0]
    # Of the variants of a mapping some may show what others cannot.
    notes = [str(problem) for problem in problems]
    notes += [f"{one['backend']}: {UNAVAILABLE}: {reason}" for one in found for reason in one.get("unavailable", ())]
    for note in notes:
        click.echo(f"blocklaws: {' '.join(note.split())}", err=True)
    if html_file is not None:
        from blocklaws.html import trace_page

        write_text(html_file, trace_page(found))
    if as_json:
        click.echo(json.dumps(found[0] if len(found) == 1 else found, indent=1))
    else:
        click.echo("\n\n".join(fixture_text(one) for one in found))
