"""What a failure is told as: the fields, the commands and the Python that reproduces it, as plain text.

Must hold: the command line, pytest, JUnit and replay tell a failure in the same words, and every command and snippet
runs as it stands when pasted. Must not: import NumPy, rich or a framework; style is the terminal's business.
"""

from __future__ import annotations

import importlib.resources
import shlex
import textwrap
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from blocklaws.config import DEFAULTS

if TYPE_CHECKING:
    from blocklaws.report import CaseResult

__all__ = [
    "NOT_DETERMINISTIC",
    "changed_text",
    "config_text",
    "failure_fields",
    "failure_text",
    "headline",
    "is_named",
    "run_command",
    "shown_place",
    "snippet",
    "verify_command",
    "world_text",
]

#: What the search adds to the reason of a failure that cannot be seen twice.
NOT_DETERMINISTIC = "looked at again, the same example holds: the block is not deterministic"

# What is told of a cached pass that differs from a full pass in which no stage was found wrong.
_CACHE_PATH = "the full pass was not found wrong: look at the cache path"

_SIZES = ("d_model", "n_heads", "n_kv_heads", "d_head", "d_ff")
#: Of more faults than these only the names are told.
_MOST_FAULTS = 3
_LABEL = 11


def shown_place(place: str) -> str:
    """Return ``file:line`` with the file as a reader would type it.

    Relative where it lies below the working folder; a file of the built-in spec elsewhere is told by its place in the
    package, since where that is installed says nothing to anybody else.
    """
    file, separator, rest = place.partition(":")
    if not file:
        return place
    try:
        path = Path(file).resolve()
        if path.is_relative_to(Path.cwd()):
            return str(path.relative_to(Path.cwd())) + separator + rest
        built_in = Path(str(importlib.resources.files("blocklaws.spec"))).resolve()
        if path.is_relative_to(built_in):
            return f"blocklaws/spec/{path.relative_to(built_in).as_posix()}{separator}{rest}"
    except OSError:
        pass
    return place


def headline(result: CaseResult) -> str:
    """Return the one line that names a failing case."""
    verdict = "VIOLATED" if result.verdict == "violated" else result.verdict.upper()
    on = f" on {result.device}" if result.device else ""
    return f"{verdict} {result.name}: backend {result.backend}{on}, block {result.block}, {result.dtype}"


def config_text(config: Mapping[str, Any]) -> str:
    """Return a config on one line: its sizes first, then its choices, without those that are off."""
    if "model" in config:
        return f"model {config['model']}, vocabulary {config['vocabulary']}"
    sizes = [f"{name} {config[name]}" for name in _SIZES if name in config]
    choices = (
        [f"{config['norm']} norm", f"{config['placement']} placement", str(config["feed_forward"])]
        if "norm" in config
        else []
    )
    if config.get("rotary"):
        choices.append(f"rotary {config['rotary']} (base {config['rotary_base']:g})")
    if config.get("bias"):
        choices.append("biases" if config["bias"] is True else f"{config['bias']} biases")
    choices += [
        f"{name} {_value(config[name])}" for name, default in DEFAULTS.items() if config.get(name, default) != default
    ]
    return ", ".join(sizes + choices)


def changed_text(changes: Mapping[str, Mapping[str, Any]]) -> str:
    """Return what the passes of a failure change of its config, to be put behind that; empty where they change nothing.

    >>> changed_text({"": {"norm_eps": 0.0}, "after": {"placement": "post"}})
    "; set by the invariant: norm_eps 0; in the pass 'after': placement post"
    """
    told = []
    for name, changed in changes.items():
        fields = ", ".join(f"{field} {_value(value)}" for field, value in changed.items())
        told.append(f"; in the pass {name!r}: {fields}" if name else f"; set by the invariant: {fields}")
    return "".join(told)


def _value(value: Any) -> str:
    number = isinstance(value, int | float) and not isinstance(value, bool)
    return f"{value:g}" if number else str(value)


def world_text(example: Mapping[str, Any]) -> str:
    """Return an example on one line: the sizes of the input, what fills it, and the invariant's picks."""
    if "ids" in example:  # of a whole model
        return ", ".join(
            [f"ids {_plain(example['ids'])}", *(f"{name} = {value}" for name, value in example["picks"].items())]
        )
    sizes = example["sizes"]
    parts = [f"B {sizes['B']}, T {sizes['T']}", f"values {example['pattern']}", f"seed {example['seed']}"]
    if example["position_offset"]:
        parts.append(f"position_offset {example['position_offset']}")
    parts += [f"{name} = {value}" for name, value in example["picks"].items()]
    return ", ".join(parts)


def verify_command(result: CaseResult) -> str:
    """Return the command that looks for the same failure again, by a search of its own."""
    words = ["blocklaws", "verify", result.label, "--invariant", result.invariant, "--block", result.block]
    words += ["--dtype", result.dtype, "--seed", str(result.seed), "--profile", result.profile]
    if result.spec_file:
        words += ["--spec", result.spec_file]
    if result.device:
        words += ["--device", result.device]
    if result.isolate:
        words += ["--isolate"]
    return shlex.join(words)


def run_command(request: Mapping[str, Any]) -> str:
    """Return the command of a whole run, given what `running.prepare` was called with.

    Empty where a backend or the spec was given as an object: no command can name it.
    """
    spec = request.get("spec")
    if not all(isinstance(name, str) for name in request["backends"]) or not isinstance(spec, str | Path | None):
        return ""
    words = ["blocklaws", "verify", *request["backends"]]
    options = (("--block", "blocks"), ("--dtype", "dtypes"), ("--invariant", "invariants"))
    words += [word for option, key in options for name in request[key] for word in (option, name)]
    words += ["--profile", str(request["profile"]), "--seed", str(request["seed"])]
    files = (
        ("--spec", spec), ("--device", request["device"]), ("--known-failures", request["known_failures"]),
        ("--shard", request.get("shard")), ("--timings", request.get("timings")),
    )  # fmt: skip
    words += [word for option, value in files if value for word in (option, str(value))]
    words += {True: ["--isolate"], False: ["--no-isolate"], None: []}[request["isolate"]]
    limits = (("--time-limit", request["time_limit"]), ("--memory-limit", request["memory_limit"]))
    words += [word for option, value in limits if value is not None for word in (option, f"{value:g}")]
    return shlex.join(words)


def is_named(result: CaseResult) -> bool:
    """Whether the backend was given by a name; one given as an object cannot be found again."""
    return not result.label.startswith("<")


def snippet(result: CaseResult) -> str:
    """Return a few lines of Python that show the failure again."""
    backend = repr(result.label) if is_named(result) else "backend"
    lines = [] if is_named(result) else ["backend = ...  # the object that was verified"]
    options = f"invariant={result.invariant!r}, block={result.block!r}, dtype={result.dtype!r}"
    extra = "".join(
        f", {name}={value!r}"
        for name, value in (
            ("spec", result.spec_file),
            ("device", result.device),
            ("isolate", result.isolate),
            ("part", result.part),
        )
        if value
    )
    # A mapping file and a family of models may stand for several backends.
    if result.label.endswith((".yaml", ".yml")) or "model" in result.config:
        extra += f", name={result.backend!r}"
    if result.counterexample is not None:
        lines += [
            "from blocklaws.replaying import examine",
            f"example = {_plain(result.counterexample)!r}",
            f"result = examine({backend}, {options}{extra}, example=example)",
            "print(result.verdict, result.reason)",
        ]
    else:
        options = f"invariants=[{result.invariant!r}], blocks=[{result.block!r}], dtypes=[{result.dtype!r}]"
        options += f", seed={result.seed}, profile={result.profile!r}"
        options += "".join(
            f", {name}={value!r}" for name, value in (("spec", result.spec_file), ("device", result.device)) if value
        )
        lines += [
            "import blocklaws",
            f"report = blocklaws.verify({backend}, {options})",
            "print(report.failures[0].reason)",
        ]
    return "\n".join(lines)


def _plain(value: Any) -> Any:
    if isinstance(value, Mapping):
        return {key: _plain(item) for key, item in value.items()}
    return [_plain(item) for item in value] if isinstance(value, list | tuple) else value


def _only_cached(result: CaseResult) -> bool:
    """Whether a cached pass was found wrong, and the full pass looked into (an expected failure is not) and not."""
    return result.invariant == "cache-parity" and bool(result.claim) and not result.stage and not result.known


def _alike_text(faults: Mapping[str, str]) -> str:
    """Return the faults that a block acts like; of many, which it cannot be told from, their names alone."""
    if len(faults) <= _MOST_FAULTS:
        return "; ".join(f"{name}: {says}" for name, says in faults.items())
    first = ", ".join(list(faults)[:_MOST_FAULTS])
    return f"{first} and {len(faults) - _MOST_FAULTS} other known faults, which are alike here"


def failure_fields(result: CaseResult, replay: str | None = None) -> list[tuple[str, str]]:
    """Return (label, text) of everything that is known of a failing case.

    Args:
        result: the failing case.
        replay: the command that replays it, when that is not what the case itself says.
    """
    fields = [("says", f"{shown_place(result.location)}: {result.says}")]
    if result.claim:
        fields.append(("claim", result.claim + (f"   ({shown_place(result.clause_at)})" if result.clause_at else "")))
    # The worst element says all that the reason does, and names the axes.
    fields.append(("worst", result.worst) if result.worst else ("reason", result.reason))
    if result.worst and result.reason.endswith(NOT_DETERMINISTIC):
        fields.append(("note", NOT_DETERMINISTIC))
    if result.pattern:
        fields.append(("wrong at", result.pattern))
    if result.how == "traced":
        fields.append(("diverges", f"first at the stage {result.divergence}"))
    elif result.divergence:
        fields.append(("narrowed", f"to {result.divergence}; {result.how.removeprefix('narrowed: ')}"))
    elif _only_cached(result):
        fields.append(("note", _CACHE_PATH))
    if result.acts_like:
        fields.append(("acts as", _alike_text(result.acts_like)))
    if result.made_by:
        fields.append(("made by", result.made_by))
    if result.counterexample is not None:
        fields.append(("config", config_text(result.config) + changed_text(result.config_changes)))
        fields.append(("world", world_text(result.counterexample)))
    if replay is None:
        replay = result.replay if is_named(result) else ""
    if replay or is_named(result):
        fields.append(("replay", replay or verify_command(result)))
    fields.append(("python", snippet(result)))
    return fields


def failure_text(result: CaseResult, replay: str | None = None, width: int | None = None) -> str:
    """Return the whole failure as text; prose is wrapped at ``width``, commands and code never are."""
    lines = [headline(result)]
    for label, text in failure_fields(result, replay):
        lines += field_lines(label, text, width)
    return "\n".join(lines)


def field_lines(label: str, text: str, width: int | None = None) -> list[str]:
    """Return the lines of one field, with its label in a column of its own."""
    start, indent = f"  {label:<{_LABEL - 2}}", " " * _LABEL
    if label == "python":
        return [start.rstrip(), *(f"    {line}" for line in text.splitlines())]
    if label in ("replay", "claim") or width is None or width < 2 * _LABEL:
        return [start + text]
    return textwrap.wrap(
        text, width, initial_indent=start, subsequent_indent=indent, break_long_words=False, break_on_hyphens=False
    )
