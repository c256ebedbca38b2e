"""The command ``replay``: one failure again, and as a test or as arrays where that is asked for.

Must hold: an id, a file of `.blocklaws`, a report and a saved world are told apart by what they are called; what is
written shows the very failure that was replayed. Must not: judge.
"""

from __future__ import annotations

import shlex
from pathlib import Path
from typing import TYPE_CHECKING

from blocklaws.cli_verify import quiet_stdout
from blocklaws.errors import BlocklawsError
from blocklaws.files import check_writable
from blocklaws.replaying import as_test, replay, world_of
from blocklaws.saved_world import is_saved_world, read_world, write_world
from blocklaws.stored_failures import read_failure
from blocklaws.terminal import Terminal

if TYPE_CHECKING:
    from blocklaws.saved_world import SavedWorld

__all__ = ["replay_and_show"]

_TOLD = {"violated": "still violated", "error": "still in error", "holds": "holds now"}


def replay_and_show(source: str, case_id: str | None, test_file: Path | None, world_file: Path | None) -> int:
    """Replay one failure, show it, and write it as a test or its world where that is asked for; return the status."""
    check_writable(test_file, world_file)
    world: SavedWorld | None = None
    if is_saved_world(source):
        if case_id is not None:
            raise BlocklawsError(f"{source}: a saved world is of one failure; leave the id {case_id!r} out")
        world = read_world(source)
        case = dict(world.case)
    else:
        case = read_failure(source, case_id)
    with quiet_stdout():
        result = replay(case, world)
    terminal = Terminal()
    if result.verdict in ("violated", "error"):
        command = shlex.join(["blocklaws", "replay", source, *([case_id] if case_id else [])])
        terminal.failures([result], {result.id: command})
        terminal.line()
    told = _TOLD.get(result.verdict, "unchecked")
    reason = f": {result.reason}" if result.verdict == "unchecked" else ""
    terminal.line(f"{result.name} on {result.backend}, {result.block}, {result.dtype}: {told}{reason}")
    if test_file is not None:
        if world is not None and not world.is_of_its_recipe(world_of(case)):
            raise BlocklawsError(
                f"{source}: its arrays are not those of its recipe, so a test without them would show another world"
            )
        as_test(case, result, test_file)
        terminal.line(f"wrote {test_file}; run it with: {shlex.join(['pytest', str(test_file)])}")
    if world_file is not None:
        with quiet_stdout():
            found = world_of(case)
        write_world(world_file, case, found)
        terminal.line(f"wrote {world_file}; replay it with: {shlex.join(['blocklaws', 'replay', str(world_file)])}")
    return {"holds": 0, "unchecked": 2}.get(result.verdict, 1)
