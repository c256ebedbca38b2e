"""Known failures: a user's own list of cases that are expected to fail, each with its reason.

Must hold: the list is strict. A listed case that holds, and an entry that matches no case of the run though nothing
that it speaks of was left out, are failures of the run, but for the cases of an entry that says it fails in some seeds
only; a listed case runs without shrinking. Must not: turn an error
of the call or of the spec into a pass.
"""

from __future__ import annotations

import dataclasses
import fnmatch
import importlib.metadata
import re
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

from blocklaws.checking import Case
from blocklaws.errors import did_you_mean
from blocklaws.failure_text import shown_place
from blocklaws.fields import Fields, as_mapping, as_sequence
from blocklaws.located_yaml import Place, load
from blocklaws.models.subject import ModelSubject
from blocklaws.planning import Choice
from blocklaws.report import CaseResult
from blocklaws.specification import Specification
from blocklaws.subjects import Subject

__all__ = ["KnownFailure", "KnownFailures"]

_KEYS = ("invariant", "backend", "block", "dtype", "device", "version", "strict", "reason")
_VERSION = re.compile(r"(?P<package>[A-Za-z0-9_.-]+?)\s*(?P<sign><=|>=|==|<|>)\s*(?P<version>[0-9][0-9.]*)\Z")


@dataclasses.dataclass(frozen=True)
class KnownFailure:
    """One entry: which cases it speaks of, and why they fail. Absent conditions match everything."""

    invariant: str
    reason: str
    place: Place
    backend: str = "*"
    block: str = "*"
    dtype: str = "*"
    device: str = "*"
    version: str = ""
    strict: bool = True
    """Whether a case that holds is a failure of the run; false of what only some seeds show."""

    def matches(self, invariant: str, name: str, backend: str, block: str, dtype: str, device: str) -> bool:
        """Whether the entry speaks of a case."""
        return (
            (_means(self.invariant, invariant) or name == self.invariant)
            and _means(self.backend, backend)
            and _means(self.block, block)
            and _means(self.dtype, dtype)
            and _means(self.device, device or "cpu")
            and self._version_matches()
        )

    def asked(self, choice: Choice, subjects: Sequence[Subject]) -> bool:
        """Whether a run with this choice looks at what the entry speaks of: what was left out cannot have been mended.

        An empty choice leaves nothing out, so that a misspelt name is found. Backends, devices and versions are always
        a choice.
        """
        return (
            any(
                self.is_about(subject)
                # Of a family of models one may have been chosen by its name.
                and (not isinstance(subject, ModelSubject) or bool(fnmatch.filter(subject.models, self.block)))
                for subject in subjects
            )
            and (not choice.blocks or any(_means(self.block, block) for block in choice.blocks))
            and (not choice.dtypes or any(_means(self.dtype, dtype) for dtype in choice.dtypes))
            and (
                not choice.invariants
                or any(_means(self.invariant, id) or self.invariant.startswith(f"{id}[") for id in choice.invariants)
            )
            and self._version_matches()
        )

    def is_about(self, subject: Subject) -> bool:
        """Whether the entry speaks of a backend, on the device where it is."""
        return self.names_one_of((subject.name,)) and _means(self.device, subject.device or "cpu")

    def names_one_of(self, backends: Iterable[str]) -> bool:
        """Whether the entry speaks of one of these backends, on some device."""
        return any(_means(self.backend, name) for name in backends)

    @property
    def package(self) -> str:
        """The distribution whose version the entry asks for; empty where it asks for none."""
        match = _VERSION.match(self.version)
        return match["package"] if match else ""

    @property
    def unmatched(self) -> str:
        """What is said of the entry when it matches nothing."""
        return f"{self.place}: the known failure of {self.invariant!r} matches no case of this run"

    def _version_matches(self) -> bool:
        if not self.version:
            return True
        match = _VERSION.match(self.version)
        assert match is not None  # checked when the entry was read
        try:
            installed = importlib.metadata.version(match["package"])
        except importlib.metadata.PackageNotFoundError:
            return False
        have, want = _numbers(installed), _numbers(match["version"])
        return {"<": have < want, "<=": have <= want, ">": have > want, ">=": have >= want, "==": have == want}[
            match["sign"]
        ]


def _means(pattern: str, name: str) -> bool:
    """Whether a name, or a pattern of names with ``*``, means a name; ``hf_llama[sdpa]`` is a name as it stands."""
    return name == pattern or fnmatch.fnmatchcase(name, pattern)


def _installed(package: str) -> bool:
    try:
        importlib.metadata.version(package)
    except importlib.metadata.PackageNotFoundError:
        return False
    return True


def _numbers(version: str) -> tuple[int, ...]:
    leading = re.match(r"[0-9]+(\.[0-9]+)*", version)
    return tuple(int(part) for part in leading[0].split(".")) if leading else ()


@dataclasses.dataclass(frozen=True)
class KnownFailures:
    """The entries of a known-failures file; none by default."""

    entries: tuple[KnownFailure, ...] = ()

    @staticmethod
    def load(path: Path | str) -> KnownFailures:
        """Read a file: a list of entries with ``invariant``, ``reason`` and conditions.

        Raises:
            SpecError: with the place of what is wrong.
        """
        data = load(path)
        if data is None:  # an empty file: the last entry was removed
            return KnownFailures()
        items = as_sequence(data, Place(str(path), 1, 1), "a known-failures file")
        entries = []
        for item, place in zip(items, items.items_at, strict=True):
            fields = Fields(as_mapping(item, place, "a known failure"), _KEYS, "known failure")
            version = fields.text("version", "")
            if version and not _VERSION.match(version):
                fields.refuse("version", f"{version!r} must read like 'torch < 2.4'")
            entries.append(
                KnownFailure(
                    invariant=fields.text("invariant"), reason=fields.text("reason"), place=place,
                    backend=fields.text("backend", "*"), block=fields.text("block", "*"),
                    dtype=fields.text("dtype", "*"),
                    device=fields.text("device", "*"), version=version, strict=fields.flag("strict", True),
                )
            )  # fmt: skip
        return KnownFailures(tuple(entries))

    def _of(self, invariant: str, name: str, backend: str, block: str, dtype: str, device: str) -> KnownFailure | None:
        for entry in self.entries:
            if entry.matches(invariant, name, backend, block, dtype, device):
                return entry
        return None

    def _of_case(self, case: Case) -> KnownFailure | None:
        return self._of(
            case.invariant.id, case.name, case.subject.name, case.kind.name, case.dtype, case.subject.device
        )

    def prepared(self, case: Case) -> Case:
        """Return the case, without shrinking when it is expected to fail."""
        return case if self._of_case(case) is None else dataclasses.replace(case, shrink=False)

    def must_fail(self, case: Case) -> bool:
        """Whether a case that holds is a failure of the run."""
        found = self._of_case(case)
        return found is not None and found.strict

    def marked(self, result: CaseResult) -> CaseResult:
        """Return the result, marked with the reason when it fails as expected."""
        found = self._of(result.invariant, result.name, result.backend, result.block, result.dtype, result.device)
        if found is None or result.verdict not in ("violated", "error"):
            return result
        return dataclasses.replace(result, known=found.reason)

    def check(self, spec: Specification, subjects: Sequence[Subject]) -> None:
        """Refuse an entry about an invariant, a block or a model that there is not, whatever a run leaves out.

        So is a version of what is not installed, where the entry speaks of a backend of this run: it could never match.
        A backend of another run is not refused, since one list serves several; see `elsewhere`.

        Raises:
            SpecError: with the place of the entry and the nearest right word.
        """
        invariants, blocks = [*spec.invariants, *spec.models], list(spec.blocks)
        for subject in subjects:
            blocks += subject.known_models if isinstance(subject, ModelSubject) else ()
        for entry in self.entries:
            id = entry.invariant.partition("[")[0]
            if not fnmatch.filter(invariants, id):
                entry.place.refuse(f"known failure: unknown invariant {id!r}{did_you_mean(id, invariants)}")
            if not fnmatch.filter(blocks, entry.block):
                entry.place.refuse(f"known failure: unknown block {entry.block!r}{did_you_mean(entry.block, blocks)}")
            if entry.package and not _installed(entry.package) and any(map(entry.is_about, subjects)):
                packages = [str(found.name) for found in importlib.metadata.distributions()]
                hint = did_you_mean(entry.package, packages)
                entry.place.refuse(
                    f"known failure: version: no distribution {entry.package!r} is installed{hint}; "
                    "correct it, or name the backend that stands on it with 'backend'"
                )

    def elsewhere(self, subjects: Sequence[Subject]) -> tuple[str, ...]:
        """Return a phrase for each backend that entries name and the run has not, with the place of the first one."""
        names = [subject.name for subject in subjects]
        found: dict[str, str] = {}
        for entry in self.entries:
            if not entry.names_one_of(names):
                place = f"{shown_place(entry.place.file)}:{entry.place.line}"
                found.setdefault(entry.backend, f"{entry.backend}{did_you_mean(entry.backend, names)} ({place})")
        return tuple(found.values())

    def told(self, results: Sequence[CaseResult], choice: Choice, subjects: Sequence[Subject]) -> list[dict[str, Any]]:
        """Return for each entry whether it ``matched`` a case, and the sentences that make it stale.

        ``unmatched`` is the one to say where nothing matched, empty where it was not asked for; ``holding`` has one for
        each case that holds.
        """
        entries = []
        for entry in self.entries:
            matched = [
                result
                for result in results
                if entry.matches(
                    result.invariant, result.name, result.backend, result.block, result.dtype, result.device
                )
            ]
            holding = [
                f"{entry.place}: {result.name} on {result.backend}, {result.block}, {result.dtype} "
                "is listed as a known "
                "failure but holds; remove the entry"
                for result in matched
                if result.verdict == "holds" and entry.strict
            ]
            unmatched = entry.unmatched if entry.asked(choice, subjects) else ""
            entries.append({"matched": bool(matched), "unmatched": unmatched, "holding": holding})
        return entries

    def stale(self, results: Sequence[CaseResult], choice: Choice, subjects: Sequence[Subject]) -> tuple[str, ...]:
        """Return a sentence for each entry that was asked for and matched nothing, and for each case that holds."""
        sentences = []
        for entry in self.told(results, choice, subjects):
            sentences += [entry["unmatched"]] * bool(entry["unmatched"] and not entry["matched"])
            sentences += entry["holding"]
        return tuple(sentences)
