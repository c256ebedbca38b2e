"""The report of a run as data: one result a case, and the JSON that other programs read.

Must hold: the keys of the JSON are those of the design, and nothing in it depends on the clock but ``seconds``. Must
not: print, or hold arrays; a result can cross process borders.
"""

from __future__ import annotations

import contextlib
import dataclasses
import hashlib
import json
import math
from collections import Counter
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from blocklaws.canonical import one_array
from blocklaws.checking import Case, Examination, Outcome, Verdict
from blocklaws.claim_axes import axes_of_claim, axes_of_stage
from blocklaws.failure_text import failure_text, shown_place
from blocklaws.localising import Divergence, axis_pattern, first_divergence
from blocklaws.located_yaml import Place
from blocklaws.passes import Pass
from blocklaws.report_schema import FORMAT
from blocklaws.stage_table import table_of_failure

if TYPE_CHECKING:
    from blocklaws.expressions import Judgement

__all__ = ["VERDICTS", "CaseResult", "Report", "result_of"]

VERDICTS: tuple[Verdict, ...] = ("holds", "violated", "unchecked", "error")


@dataclasses.dataclass(frozen=True)
class CaseResult:
    """What is known of one case when it is done."""

    invariant: str
    part: str
    block: str
    backend: str
    label: str
    dtype: str
    verdict: Verdict
    reason: str
    says: str
    location: str
    examples: int = 0
    informative: int = 0
    seconds: float = 0.0
    max_error: float | None = None
    nearest: tuple[float, float] | None = None
    """The (difference, allowed) of the comparison that came nearest to its bound, or went furthest beyond it."""
    stage: str | None = None
    pattern: str = ""
    claim: str = ""
    clause_at: str = ""
    worst: str = ""
    element: Mapping[str, Any] | None = None
    """What ``worst`` says, for programs: ``axes``, ``at``, ``of``, ``got``, ``want``, ``difference`` ..."""
    divergence: str = ""
    how: str = ""
    """How ``stage`` was found: ``traced``, or ``narrowed: ...`` with the experiments; a group is joined by "or"."""
    acts_like: Mapping[str, str] = dataclasses.field(default_factory=dict)
    """The known faults that give what the block gave -> what each of them says."""
    made_by: str = ""
    """Where the maker of the backend says that ``stage`` comes from: of a mapping, the lines of its file."""
    stages: Mapping[str, Any] | None = None
    """The stages of the failing world beside the reference's, as `stage_table` gives them; a failure alone has it."""
    examples_to_fail: int = 0
    unproven: bool = False
    spec_mistake: bool = False
    known: str = ""
    config: Mapping[str, Any] = dataclasses.field(default_factory=dict)
    """The config of the first pass."""
    config_changes: Mapping[str, Mapping[str, Any]] = dataclasses.field(default_factory=dict)
    """Pass -> what its config has otherwise than ``config``; under "", what the invariant set for all passes."""
    counterexample: Mapping[str, Any] | None = None
    seed: int = 0
    profile: str = "default"
    spec_file: str = ""
    device: str = ""
    isolate: bool = False
    """Whether the backend ran in a process of its own; a replay must do the same."""
    compilations: int = dataclasses.field(default=0, compare=False)
    """How many programs the backend compiled meanwhile: like the time, it depends on what the process did before."""

    @property
    def name(self) -> str:
        """The invariant's id with the part that was checked."""
        return f"{self.invariant}[{self.part}]" if self.part else self.invariant

    @property
    def id(self) -> str:
        """A short id, the same whenever the same counterexample is found."""
        text = json.dumps(
            [self.name, self.block, self.label, self.backend, self.dtype, self.counterexample], sort_keys=True
        )
        return hashlib.sha256(text.encode()).hexdigest()[:10]

    @property
    def failed(self) -> bool:
        """Whether the case makes the run fail."""
        return self.verdict in ("violated", "error") and not self.known

    @property
    def replay(self) -> str:
        """A command that replays the failure."""
        return f"blocklaws replay {self.id}" if self.counterexample is not None else ""

    def as_dict(self) -> dict[str, Any]:
        """Return the case as the design's JSON has it, with a few keys more."""
        data = dataclasses.asdict(self)
        data["max_error"] = _json_number(self.max_error)
        data["nearest"] = None if self.nearest is None else [_json_number(value) for value in self.nearest]
        data["seconds"] = round(self.seconds, 4)
        del data["compilations"]
        return {**data, "id": self.id if self.counterexample is not None else "", "replay": self.replay}


def _json_number(value: float | None) -> float | str | None:
    """JSON has no infinities and no NaN; they are written as texts."""
    return value if value is None or math.isfinite(value) else repr(value)


def result_of(case: Case, outcome: Outcome, seconds: float, spec_file: str = "") -> CaseResult:
    """Return the result of a case; a failure is localised here, while its passes are at hand."""
    details: dict[str, Any] = {}
    if (failure := outcome.failure) is not None:
        examination = failure.examination
        passes = examination.passes or examination.tried
        world = next(iter(passes.values())).world if passes else None
        config = world.config.as_dict() if world is not None else case.config_of(failure.example)
        details |= {
            "counterexample": failure.example.as_dict(),
            "config": config,
            "config_changes": _config_changes(config, case.config_of(failure.example), passes),
            "examples_to_fail": failure.examples_to_fail,
            **_claimed(examination),
            **_localised(case, examination),
        }
    details.setdefault("max_error", outcome.max_error)
    details.setdefault("nearest", outcome.nearest)
    return CaseResult(
        invariant=case.invariant.id,
        part=case.part,
        block=case.kind.name,
        backend=case.subject.name,
        label=case.subject.label,
        dtype=case.dtype,
        verdict=outcome.verdict,
        reason=outcome.reason,
        says=case.invariant.says,
        location=_place(case.invariant.place),
        examples=outcome.examples,
        informative=outcome.informative,
        seconds=seconds,
        unproven=case.invariant.unproven,
        spec_mistake=outcome.spec_mistake,
        seed=case.seed,
        profile=case.profile.name,
        spec_file=spec_file,
        device=case.subject.device,
        isolate=case.subject.isolated,
        **details,
    )


def _config_changes(
    config: Mapping[str, Any], kind: Mapping[str, Any], passes: Mapping[str, Pass]
) -> dict[str, dict[str, Any]]:
    """Return pass -> the fields of its config that are not those of the first pass, whose own are not the kind's."""
    configs = {name: passed.world.config.as_dict() for name, passed in passes.items()}
    changes = {"": _otherwise(config, kind)}
    changes |= {name: _otherwise(each, config) for name, each in configs.items() if name}
    return {name: changed for name, changed in changes.items() if changed}


def _otherwise(config: Mapping[str, Any], than: Mapping[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in config.items() if value != than.get(name, value)}


def _place(place: Place) -> str:
    return shown_place(f"{place.file}:{place.line}")


def _claimed(examination: Examination) -> dict[str, Any]:
    """Return what is told of the claim that failed: where, by how much, and which elements."""
    details: dict[str, Any] = {}
    if examination.clause is not None:
        details["clause_at"] = _place(examination.clause.place)
    if (judgement := examination.judgement) is None:
        return details
    details["claim"] = judgement.claim
    if judgement.worst is None or not judgement.shape:
        return details
    expression = examination.clause.expression if examination.clause is not None else None
    names = axes_of_claim(expression, judgement.claim, len(judgement.shape), judgement.name)
    where = ", ".join(f"{name}={index}" for name, index in zip(names, judgement.worst, strict=True))
    broken = f", {judgement.incomparable}" if judgement.incomparable else ""
    found = _too_alike(judgement) or (
        f"got {_number(judgement.got)}"
        + (f", expected {_number(judgement.want)}" if judgement.want is not None else "")
        + (f", |difference| {judgement.difference:.3g}" if judgement.difference is not None and not broken else broken)
        + (f", allowed {judgement.allowed:.3g}" if judgement.allowed and not broken else "")
    )
    named = f"{judgement.name}, " if judgement.name else ""
    details["worst"] = f"at {named}{where}: {found} ({judgement.wrong} of {judgement.total} elements)"
    details["element"] = {
        "of": judgement.name,
        "axes": list(names),
        "at": list(judgement.worst),
        **{name: _json_number(getattr(judgement, name)) for name in ("got", "want", "difference", "allowed")},
        "wrong": judgement.wrong,
        "total": judgement.total,
    }
    if judgement.mask is not None:
        details["pattern"] = axis_pattern(judgement.mask, names)
    details["max_error"] = judgement.difference
    details["nearest"] = judgement.nearness
    return details


def _too_alike(judgement: Judgement) -> str:
    """Return what was found where a claim that something differs failed; empty for any other claim."""
    if judgement.difference is None or judgement.allowed is None or not judgement.difference <= judgement.allowed:
        return ""
    more = f" by more than {judgement.allowed:.3g}" if judgement.allowed else ""
    if judgement.difference == 0:
        return f"both sides are {_number(judgement.got)}, and they should differ{more}"
    return (
        f"{_number(judgement.got)} and {_number(judgement.want)} differ by {judgement.difference:.3g}, "
        f"and they should differ{more}"
    )


def _localised(case: Case, examination: Examination) -> dict[str, Any]:
    """Return which stage is wrong and, of a failure that is looked into, its stages beside the reference's."""
    if not examination.passes:
        return {}
    divergence = first_divergence(examination.passes, case.tolerance)
    # An expected failure is not looked into, as it is not shrunk.
    alike = _acts_like(case, examination) if case.shrink else {}
    details = _diverging(divergence, explained=bool(alike.get("acts_like"))) if divergence is not None else {}
    if not case.shrink:
        return details | _made_by(case, details)
    # A verdict is not lost to what only explains it.
    with contextlib.suppress(Exception):
        if divergence is None and examination.judgement is not None and "trace" not in case.abilities.shown:
            details |= _narrowed(case, examination)
    details |= _made_by(case, details) | alike
    with contextlib.suppress(Exception):
        first = divergence.passed if divergence is not None else next(iter(examination.passes))
        details["stages"] = table_of_failure(examination.passes, first, case.tolerance)
    return details


def _acts_like(case: Case, examination: Examination) -> dict[str, Any]:
    """Return the known mistakes that do what a failing block does."""
    with contextlib.suppress(Exception):
        if examination.judgement is not None:
            from blocklaws.resembling import resembled

            return {"acts_like": {fault.id: fault.says for fault in resembled(case, examination.passes)}}
    return {}


def _made_by(case: Case, details: Mapping[str, Any]) -> dict[str, Any]:
    """Return where the stage at fault comes from, or of several each of them."""
    found = [case.subject.stages_at.get(stage, ()) for stage in str(details.get("stage") or "").split(" or ")]
    # What every stage comes from stands last, as it does of one.
    shared = set(found[0]).intersection(*found[1:]) if len(found) > 1 else set()
    told = dict.fromkeys(sorted((at for each in found for at in each), key=lambda at: at in shared))
    return {"made_by": ", ".join(told)}


def _diverging(divergence: Divergence, *, explained: bool) -> dict[str, Any]:
    also = one_array(divergence.placement).get(divergence.stage)
    of = (f" (= {also})" if also else "") + (f" in the pass {divergence.passed!r}" if divergence.passed else "")
    mask = divergence.judgement.mask
    where = "" if mask is None else f": {axis_pattern(mask, axes_of_stage(divergence.stage, mask.ndim))}"
    only = ""
    if divergence.output_right and not explained:
        # Scores see the difference of two positions alone.
        turns = divergence.stage in ("query", "key")
        only = f"; the output is right, so look at what shows the stage too{', or turns both alike' if turns else ''}"
    return {"stage": divergence.stage, "divergence": f"{divergence.stage}{of}{where}{only}", "how": "traced"}


def _narrowed(case: Case, examination: Examination) -> dict[str, Any]:
    """Return what experiments on ``forward`` say of a block that shows no stages."""
    from blocklaws.narrowing import narrowed

    if (found := narrowed(case, examination.passes)) is None:
        return {}
    stages = " or ".join(found.stages)
    of = f" in the pass {found.passed!r}" if found.passed else ""
    return {"stage": stages, "divergence": f"{stages}{of}: {found.says}", "how": f"narrowed: {found.how}"}


def _number(value: float | None) -> str:
    return "nothing" if value is None else f"{value:.9g}"


@dataclasses.dataclass(frozen=True)
class Report:
    """Everything that a run found."""

    version: str
    spec: Mapping[str, Any]
    seed: int
    profile: str
    backends: tuple[Mapping[str, Any], ...]
    cases: tuple[CaseResult, ...]
    stale: tuple[str, ...] = ()
    """Known failures that no case of the run matched, or that held: each is a failure of its own."""
    invariants: tuple[str, ...] = ()
    """The ids of the spec, in its order."""
    meanings: Mapping[str, Mapping[str, str]] = dataclasses.field(default_factory=dict)
    """Invariant -> ``family``, ``why`` and ``means``, for those that the run has cases of."""
    versions: Mapping[str, str] = dataclasses.field(default_factory=dict)
    """Name -> version of what the run stands on: Python, NumPy, a backend's framework."""
    command: str = ""
    """The command that repeats the run; empty where a backend or the spec was given as an object."""
    not_run: int = 0
    """How many cases an interrupt left out."""
    shard: Mapping[str, Any] | None = None
    """Which part of a run this is of, with what `merge` must know of the whole; None for a whole run."""
    campaign: Mapping[str, Any] | None = None
    """Of a run until something fails: the ``first`` seed, how many ``held`` after it, and on how many ``examples``."""

    @property
    def summary(self) -> dict[str, int]:
        """Verdict -> number of cases."""
        counts = Counter(case.verdict for case in self.cases)
        return {verdict: counts[verdict] for verdict in VERDICTS}

    @property
    def failures(self) -> tuple[CaseResult, ...]:
        """The cases that make the run fail."""
        return tuple(case for case in self.cases if case.failed)

    @property
    def exit_status(self) -> int:
        """0 everything that was checked holds, 1 something is violated or in error, 2 nothing could be checked."""
        if self.failures or self.stale:
            return 1
        # Whether nothing could be checked is to be said of the whole run.
        if self.shard is not None:
            return 0
        return 0 if any(case.verdict != "unchecked" for case in self.cases) else 2

    def __str__(self) -> str:
        """Every failure in full, then the counts: what `print(report)` shows."""
        counts = ", ".join(f"{count} {verdict}" for verdict, count in self.summary.items())
        return "\n\n".join([*map(failure_text, self.failures), *self.stale, f"{len(self.cases)} cases: {counts}"])

    def as_dict(self) -> dict[str, Any]:
        """Return the report as JSON data."""
        return {
            "blocklaws": self.version,
            "format": FORMAT,
            "versions": dict(self.versions),
            "spec": dict(self.spec),
            "seed": self.seed,
            "profile": self.profile,
            "command": self.command,
            "backends": [dict(backend) for backend in self.backends],
            "invariants": list(self.invariants),
            "meanings": [{"invariant": id, **told} for id, told in self.meanings.items()],
            "cases": [case.as_dict() for case in self.cases],
            "stale_known_failures": list(self.stale),
            "not_run": self.not_run,
            "summary": self.summary,
            **({"shard": dict(self.shard)} if self.shard is not None else {}),
            **({"campaign": dict(self.campaign)} if self.campaign is not None else {}),
        }
