"""What the tests of the command line, the terminal, replay and pytest share: adapters, a small spec, and a way to call.

Must hold: adapters and specs live in a folder of the test's own, and the spec brings its own menu and invariants, so
that a change of the built-in spec changes no expected text here.
"""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

from click.testing import CliRunner, Result

from blocklaws.cli import cli
from blocklaws.new_backend import new_backend

#: Three invariants: one that a mask off by one refutes, one that needs gradients, and one that names no fault.
SPEC = """\
menus:
  equal:
    - {B: 1, T: 2, n_heads: 1, d_head: 4, d_ff: 3}
    - {B: 2, T: 3, n_heads: 2, d_head: 4, d_ff: 6}
invariants:
  - id: no-look-ahead
    says: Changing a token changes no earlier output row.
    where: T >= 2
    pick: {p: 1 .. T-1}
    vary: {input: {tokens: "p:", by: fresh}}
    then: identical(after.output[:, :p], output[:, :p])
    refuted_by: [mask-off-by-one]
  - id: gradient-is-finite
    says: The gradient of the input is finite.
    then: finite(gradient.input)
    refuted_by: [mask-off-by-one]
  - id: same-shape
    says: The output has the shape of the input.
    then: output.shape == input.shape
"""

#: What is appended to the adapter to make one that is wrong in its own way; {change} is the body of its forward.
WRONG = """

class Wrong(Backend):
    name = "wrong"
    dtypes = ("float32",)

    def build(self, config, parameters, dtype):
        return WrongBlock(config, parameters)


class WrongBlock(Block):
    trace = None

    def forward(self, x, position_offset=0):
        {change}

    def right(self, x, position_offset):
        return Block.trace(self, x, position_offset)["output"]
"""


def invoke(*arguments: str | Path, columns: int = 100, **environment: str) -> Result:
    """Call the command line in this process."""
    runner = CliRunner(env={"COLUMNS": str(columns), "NO_COLOR": "1", "CI": "", **environment})
    return runner.invoke(cli, [str(argument) for argument in arguments], prog_name="blocklaws")


def write_right(folder: Path, name: str = "right.py") -> str:
    """Write an adapter that is right; return the name of its backend, relative to the folder."""
    new_backend(folder / name)
    return f"{name}:Backend"


def write_broken(folder: Path, name: str = "broken.py") -> str:
    """Write an adapter whose queries see one key too many; return the name of its backend."""
    write_right(folder, name)
    source = (folder / name).read_text(encoding="utf-8")
    assert source.count("np.tri(x.shape[1], dtype=bool)") == 1
    source = source.replace("np.tri(x.shape[1], dtype=bool)", "np.tri(x.shape[1], k=1, dtype=bool)")
    (folder / name).write_text(source, encoding="utf-8")
    return f"{name}:Backend"


def write_wrong(folder: Path, change: str, name: str = "wrong.py") -> str:
    """Write an adapter whose ``forward`` is what the change says; return the name of its backend."""
    write_right(folder, name)
    with (folder / name).open("a", encoding="utf-8") as stream:
        stream.write(WRONG.format(change=change))
    return f"{name}:Wrong"


def write_known(folder: Path, *invariants: str) -> None:
    """Write a file of known failures, ``known.yaml``."""
    entries = (f"- {{invariant: {invariant}, reason: being mended}}\n" for invariant in invariants)
    (folder / "known.yaml").write_text("".join(entries), encoding="utf-8")


def write_spec(folder: Path, text: str = SPEC, name: str = "spec.yaml") -> str:
    """Write a spec; return its name."""
    (folder / name).write_text(text, encoding="utf-8")
    return name


def timeless(name: str = "report.json", seconds: float = 0) -> dict[str, Any]:
    """Return a report from its file, with the same time for each case."""
    data: dict[str, Any] = json.loads(Path(name).read_text(encoding="utf-8"))
    for case in data["cases"]:
        case["seconds"] = seconds
    return data


def placeless(report: dict[str, Any]) -> dict[str, Any]:
    """Return a report as it is wherever the built-in spec was first read, which decides what folder is shown."""
    sources = [Path(source).name for source in report["spec"]["sources"]]
    return {**report, "spec": {**report["spec"], "sources": sources}}


def places(data: Any, path: tuple[Any, ...] = ()) -> list[tuple[Any, ...]]:
    """Return every place in some data of a file, outermost first: the keys and indices that lead there."""
    found = [path] if path else []
    entries = data.items() if isinstance(data, dict) else enumerate(data) if isinstance(data, list) else ()
    for key, value in entries:
        found += places(value, (*path, key))
    return found


def scrubbed(text: str) -> str:
    """Return a text without what changes from run to run: times, versions, digests and ids."""
    text = re.sub(r"\bin \d+\.\d s\b", "in TIME s", text)
    text = re.sub(r"\d+\.\d\d s\b", "TIME s", text)
    text = re.sub(r"( +)\d+\.\d s$", r"\1TIME s", text, flags=re.MULTILINE)
    text = re.sub(r"^  python \d.*$", "  VERSIONS", text, flags=re.MULTILINE)
    text = re.sub(r"blocklaws \d+\.\d+\.\d+, spec [0-9a-f]{8},", "blocklaws VERSION, spec DIGEST,", text)
    text = re.sub(r"^blocklaws \d+\.\d+\.\d+\S*,", "blocklaws VERSION,", text, flags=re.MULTILINE)
    text = re.sub(r"\([0-9a-f]{8}\)", "(DIGEST)", text)
    text = re.sub(r"^           [0-9a-f]{10}  ", "           ID  ", text, flags=re.MULTILINE)
    return re.sub(r"(replay (?:\w+\.json )?)[0-9a-f]{10}", r"\1ID", text)
