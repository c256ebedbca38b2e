"""The files that a run writes: the published schema describes the JSON, and Markdown, badge and JUnit say what is so.

Must hold: the schema accepts what is written and refuses it with any key lost, or with another kind of value; no text
of a spec, a backend or a file is markup in a file of ours.
"""

from __future__ import annotations

import dataclasses
import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import jsonschema
import pytest
from faces_support import invoke, write_broken, write_right, write_spec, write_wrong
from report_support import Data, changed, holding, killed, verified, write

from blocklaws.badge import badge_svg, message_of
from blocklaws.markdown import LONGEST, code, fenced, report_markdown
from blocklaws.report import CaseResult, Report
from blocklaws.report_reading import read_report
from blocklaws.report_schema import FORMAT, report_schema
from blocklaws.running import verify

LLAMA = ("--spec", "spec.yaml", "--block", "llama", "--dtype", "float32")
REPORTS = {"verify": verified, "faults": killed}


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Run in a folder with a spec of three invariants."""
    monkeypatch.chdir(tmp_path)
    write_spec(tmp_path)
    return tmp_path


# --- the schema ---


def refused(data: Any) -> bool:
    """Whether the published schema refuses some data."""
    return next(jsonschema.Draft202012Validator(report_schema()).iter_errors(data), None) is not None


def test_the_schema_that_is_printed() -> None:
    """Fails when the published schema is none, or is not the one that files are checked with."""
    printed = json.loads(invoke("schema", "report").output)
    assert printed == report_schema()
    jsonschema.Draft202012Validator.check_schema(printed)
    assert printed["$id"].endswith(f":{FORMAT}")


@pytest.mark.parametrize("kind", REPORTS)
def test_a_real_report_is_of_the_schema_and_carries_its_version(kind: str) -> None:
    """Fails when what is written is not what is published."""
    data = REPORTS[kind]()
    assert data["format"] == FORMAT
    assert not refused(data)
    write(Path(), report=data)
    assert read_report("report.json").kind == kind


def described(data: Any, schema: Data, where: str = "") -> Iterator[str]:
    """Yield the keys of some data that the schema does not describe."""
    while "$ref" in schema:
        schema = report_schema()["$defs"][schema["$ref"].rpartition("/")[2]]
    for other in schema.get("anyOf", ()):
        if "$ref" in other and data is not None:
            schema = report_schema()["$defs"][other["$ref"].rpartition("/")[2]]
    if isinstance(data, dict) and "properties" in schema:
        for key, value in data.items():
            if key not in schema["properties"]:
                yield f"{where}.{key}"
            else:
                yield from described(value, schema["properties"][key], f"{where}.{key}")
    if isinstance(data, list) and "items" in schema:
        for value in data[:1]:
            yield from described(value, schema["items"], f"{where}[]")


@pytest.mark.parametrize("kind", REPORTS)
def test_every_key_that_is_written_is_described(kind: str) -> None:
    """Fails when a key is added to a report and the published schema does not say what it means."""
    allowed = {".spec.invariants"}
    assert set(described(REPORTS[kind](), report_schema()["$defs"][kind])) <= allowed
    fields = {field.name for field in dataclasses.fields(CaseResult)} - {"compilations"}  # which is the backend's
    assert fields <= set(report_schema()["$defs"]["case"]["required"])


def places(data: Any, path: tuple[Any, ...] = ()) -> Iterator[tuple[Any, ...]]:
    """Yield the places of a report that the schema fixes: every key, and the first entry of every list."""
    if isinstance(data, dict):
        for key in data:
            yield (*path, key)
            if key not in ("picks", "config", "acts_like", "examples_to_kill", "stages", "versions"):
                yield from places(data[key], (*path, key))
    elif isinstance(data, list) and data:
        yield from places(data[0], (*path, 0))


def at(data: Any, path: tuple[Any, ...]) -> Any:
    """Return what stands at a place."""
    for part in path:
        data = data[part]
    return data


@pytest.mark.parametrize("kind", REPORTS)
def test_the_schema_refuses_mutants(kind: str) -> None:
    """Fails when a report that lost a key, or has a value of another kind, passes for one."""
    data = REPORTS[kind]()
    key = "cases" if kind == "verify" else "faults"
    data[key] = data[key][:1]
    passed = []
    for path in places(data):
        if path[-1] in ("invariants",):
            continue
        for how in ("lost", "list", "negative"):
            mutant = json.loads(json.dumps(data))
            holder = at(mutant, path[:-1])
            if how == "lost":
                del holder[path[-1]]
            else:
                holder[path[-1]] = [[]] if how == "list" else -1
            # An element of an array may well be negative.
            if not refused(mutant) and (how, path[-1]) not in (("negative", "got"), ("negative", "want")):
                passed.append((how, path))
    assert passed == []


@pytest.mark.parametrize(
    "values",
    [
        {"verdict": "hold"}, {"verdict": "violated", "counterexample": None}, {"verdict": "unchecked", "reason": ""},
        {"dtype": "float31"}, {"examples": 1.5}, {"seconds": "1"}, {"max_error": "many"}, {"id": "XYZ"},
        {"unproven": 1}, {"known": None},
    ],
)  # fmt: skip
def test_the_schema_refuses_what_no_case_is(values: Data) -> None:
    """Fails when a verdict without its evidence is accepted."""
    assert refused(
        changed(verified(), lambda data: data["cases"][0].update(values)) | {"summary": verified()["summary"]}
    )


@pytest.mark.parametrize(
    ("change", "told"),
    [
        (lambda data: data.update(format=2), "has the format 2, and this blocklaws reads format 1"),
        (lambda data: data.update(format=True), "has the format True"),
        (lambda data: data.update(failure={}), "is one stored failure and no report; `blocklaws replay` takes it"),
        (lambda data: data.update(faults=[]), "and it has both"),
        (lambda data: data.pop("cases"), "and it has neither"),
        (lambda data: data["summary"].update(holds=1), "is damaged: summary: it does not count what stands in 'cases'"),
        (lambda data: data["cases"].append(data["cases"][0]), "the same case stands there twice"),
        (lambda data: data["cases"][0].update(backend="other"), "cases.0: its backend is not among 'backends'"),
        (lambda data: data["cases"][0].update(informative=99), "more of its examples are informative than it has"),
        (lambda data: data["cases"][2].update(verdict="hold"), "is damaged: cases.2.verdict: 'hold' is not one of"),
    ],
)
def test_a_report_that_is_none_is_one_line(change: Any, told: str) -> None:
    """Fails when a reader of a damaged file is not told where it is damaged."""
    data = verified()
    change(data)
    write(Path(), bad=data, good=verified())
    for arguments in (("bad.json", "good.json"), ("good.json", "bad.json")):
        done = invoke("compare", *arguments)
        assert (done.exit_code, done.stdout) == (2, "")
        assert done.stderr.startswith("blocklaws: bad.json: ")
        assert told in done.stderr
        assert done.stderr.count("\n") == 1


@pytest.mark.parametrize(
    ("change", "told"),
    [
        (lambda data: data["faults"].append(data["faults"][0]), "the same fault stands there twice"),
        (lambda data: data["faults"][0]["killed_by"].append("x"), "'killed_by' and 'examples_to_kill' disagree"),
        (lambda data: data["rates"].pop(), "rates: they are not those of what stands in 'faults'"),
        (lambda data: data["faults"][0].update(survived=True), "faults.0.killed_by: "),
    ],
)
def test_a_kill_matrix_that_is_none_is_one_line(change: Any, told: str) -> None:
    """Fails when a kill matrix that contradicts itself is compared."""
    data = killed()
    change(data)
    write(Path(), bad=data, good=killed())
    done = invoke("compare", "good.json", "bad.json")
    assert done.exit_code == 2
    assert told in done.stderr
    assert done.stderr.count("\n") == 1


# --- Markdown ---


def report_of(folder: Path) -> Report:
    """Return the report of a wrong and a right backend."""
    return verify(write_broken(folder), write_right(folder), spec="spec.yaml", blocks=["llama"], profile="quick")


def test_the_markdown_of_a_run(folder: Path) -> None:
    """Fails when a pull request does not show what the terminal shows."""
    backends = (write_broken(folder), write_right(folder))
    done = invoke("verify", *backends, *LLAMA, "--markdown", "summary.md")
    assert done.exit_code == 1
    text = (folder / "summary.md").read_text(encoding="utf-8")
    assert text.startswith(
        "### blocklaws: 1 violated\n\n6 cases: 3 hold, 1 violated, 0 in error, 2 unchecked. "
        "Exit status 1: something is violated or in error.\n\n| backend | hold | violated | in error | unchecked |"
    )
    assert "\n| <code>broken</code> | 1 | 1 | 0 | 1 | 25 | 100 % | 47 | " in text
    assert "\n**Violated**: <code>no-look-ahead</code> on <code>broken</code>, <code>llama</code>" in text
    assert "\n  diverges first at the stage attention_weights: query 0, every batch, head and key\n" in text
    assert "<details><summary>unchecked, so nothing is known of 2 cases</summary>" in text


def test_the_markdown_of_a_good_run(folder: Path) -> None:
    """Fails when a good run does not say so in its first line, or one that checked nothing does."""
    report = verify(write_right(folder), spec="spec.yaml", blocks=["llama"], profile="quick")
    assert report_markdown(report, 0, "why").startswith("### blocklaws: everything that was checked holds\n")
    nothing = dataclasses.replace(report, cases=tuple(case for case in report.cases if case.verdict == "unchecked"))
    assert report_markdown(nothing, 2, "why").startswith("### blocklaws: nothing could be checked\n")
    stale = dataclasses.replace(report, stale=("known.yaml:1: matched nothing",))
    assert report_markdown(stale, 1, "why").startswith("### blocklaws: 1 known failures are stale\n")


HOSTILE = (
    "|\n\n# x <script>alert(1)</script> </code> ``` @everyone [a](http://x.y) ![b](z) www.evil.example &lt; \x1b[31m"
)


def visible(markdown: str) -> str:
    """Return a Markdown text without code elements and fenced blocks: what could still be markup."""
    outside = re.sub(r"(?ms)^(`{3,})text$.*?^\1$", "", markdown)
    return re.sub(r"<code>[^<>\n|`]*</code>", "", outside)


def test_no_text_is_markup(folder: Path) -> None:
    """Fails when a backend's message, or an invariant's sentence, ends a cell or a fence, or calls somebody."""
    report = report_of(folder)
    fields = (
        "invariant",
        "block",
        "backend",
        "reason",
        "says",
        "location",
        "worst",
        "claim",
        "pattern",
        "stage",
        "known",
    )
    cases = []
    for case in report.cases:
        cases.append(dataclasses.replace(case, **{name: HOSTILE for name in fields if name != "known"}))
        cases.append(dataclasses.replace(case, verdict="error", reason=HOSTILE + case.dtype))
    hostile = dataclasses.replace(
        report, cases=tuple(cases), profile=HOSTILE, stale=(HOSTILE,), version=HOSTILE,
        backends=({"name": HOSTILE},), versions={HOSTILE: HOSTILE}, spec={"sha256": HOSTILE, "sources": [HOSTILE]},
    )  # fmt: skip
    text = report_markdown(hostile, 1, "something is violated or in error")
    for sign in ("script", "@", "evil", "http", "\x1b", "alert"):
        assert sign not in visible(text), sign
    assert "<script" in text, "it is shown, in a fenced block"
    tables = [line for line in visible(text).splitlines() if line.startswith("|")]
    assert {line.count("|") for line in tables} == {10}
    assert set(re.findall(r"</?(\w+)", visible(text))) <= {"details", "summary"}
    assert visible(text).count("<details>") == visible(text).count("</details>")


def test_code_and_fences_cannot_be_left() -> None:
    """Fails when a text is longer, or stronger, than what it is put into."""
    assert code("a|b`c\n<d>@e") == "<code>a&#124;b&#96;c &#60;d&#62;&#64;e</code>"
    assert code("www.x") == "<code>www&#46;x</code>"
    assert len(code("&" * 10_000)) < 2_000
    assert fenced("a\n````\n\x07") == "`````text\na\n````\n?\n`````"
    assert len(fenced("x" * 100_000)) < 5_000


def test_the_markdown_is_never_too_long_for_a_comment(folder: Path) -> None:
    """Fails when a thousand failures make a comment that is refused, or what is left out is not said."""
    report = report_of(folder)
    (failure,) = [case for case in report.failures if case.dtype == "float32"]
    many = tuple(
        dataclasses.replace(
            failure, invariant=f"{'invariant' * 9}-{number}", stage=f"stage {number}", reason="&" * 3000
        )
        for number in range(1000)
    )
    text = report_markdown(dataclasses.replace(report, cases=many), 1, "why")
    assert len(text) <= LONGEST <= 65_536
    assert re.search(r"\n\d+ more parts are left out here; the JSON has everything\.\n", text)
    assert text.startswith("### blocklaws: 1000 violated\n\n1000 cases: ")
    short = report_markdown(dataclasses.replace(report, cases=(failure,)), 1, "why")
    assert "left out" not in short


# --- the badge ---


def badge(report: Report) -> tuple[str, str]:
    """Return the text and the title of a report's badge, which is well-formed."""
    root = ElementTree.fromstring(badge_svg(report))
    space = "{http://www.w3.org/2000/svg}"
    title = root.find(f"{space}title")
    assert title is not None
    assert root.get("role") == "img"
    assert root.get("aria-label") == title.text
    texts = [element.text or "" for element in root.iter(f"{space}text")]
    widths = [int(element.get("textLength", "0")) for element in root.iter(f"{space}text")]
    assert int(root.get("width", "0")) == sum(widths) + 24, "two texts, six pixels on each side of both"
    assert all(4 * len(text) <= width <= 11 * len(text) for text, width in zip(texts, widths, strict=True))
    return " | ".join(texts), title.text or ""


def test_the_badge_says_what_is_so(folder: Path) -> None:
    """Fails when a badge shows a run as better than it was."""
    report = report_of(folder)
    assert badge(report) == ("blocklaws | 2 violated", "blocklaws: 6 hold, 2 violated, 0 in error, 4 unchecked")

    def with_cases(*wanted: str, **changes: Any) -> str:
        cases = tuple(case for case in report.cases if case.verdict in wanted)
        return badge(dataclasses.replace(report, cases=cases, **changes))[0]

    assert with_cases("holds") == "blocklaws | 6 hold"
    assert with_cases("holds", "unchecked") == "blocklaws | 6 hold, 4 unchecked"
    assert with_cases("unchecked") == "blocklaws | 4 unchecked"
    assert with_cases() == "blocklaws | nothing checked"
    assert with_cases("holds", stale=("x",)) == "blocklaws | 1 stale"
    assert with_cases("holds", not_run=1) == "blocklaws | interrupted"
    known = tuple(dataclasses.replace(case, known="yes" if case.verdict == "violated" else "") for case in report.cases)
    assert badge(dataclasses.replace(report, cases=known))[0] == "blocklaws | 6 hold, 2 known, 4 unchecked"
    errors = tuple(dataclasses.replace(case, verdict="error") for case in report.failures)
    assert badge(dataclasses.replace(report, cases=errors))[0] == "blocklaws | 2 in error"


def contrast(colour: str) -> float:
    """Return the contrast of white on a colour, after WCAG 2."""
    parts = [int(colour[place : place + 2], 16) / 255 for place in (1, 3, 5)]
    linear = [part / 12.92 if part <= 0.04045 else ((part + 0.055) / 1.055) ** 2.4 for part in parts]
    return 1.05 / (0.2126 * linear[0] + 0.7152 * linear[1] + 0.0722 * linear[2] + 0.05)


def test_the_badge_can_be_read_and_asks_nobody(folder: Path) -> None:
    """Fails when the words do not stand out, or the picture asks a network for something."""
    report = report_of(folder)
    right = tuple(case for case in report.cases if case.verdict == "holds")
    for each in (report, dataclasses.replace(report, cases=right), dataclasses.replace(report, cases=())):
        svg = badge_svg(each)
        for colour in {message_of(each)[1], *re.findall(r"#[0-9a-f]{6}", svg)}:
            assert contrast(colour) >= 4.5, colour
        assert "http" not in svg.replace("http://www.w3.org/2000/svg", "")
    assert contrast("#ffffff") < 1.1, "the measure itself"


# --- files ---


def test_every_file_is_written_by_one_run(folder: Path) -> None:
    """Fails when one option hides another, or leaves half a file beside it."""
    files = {"--json": "r.json", "--junit": "r.xml", "--markdown": "r.md", "--badge": "r.svg"}
    done = invoke("verify", write_right(folder), *LLAMA, *(part for pair in files.items() for part in pair))
    assert done.exit_code == 0
    assert {path.name for path in folder.iterdir() if path.name.startswith(("r.", ".r"))} == set(files.values())
    root = ElementTree.parse(folder / "r.xml").getroot()
    assert [root.get(key) for key in ("tests", "failures", "errors", "skipped")] == ["3", "0", "0", "1"]
    named = {entry.get("name"): entry.get("value") for entry in root.iter("property")}
    assert named["profile"] == "default"
    assert named["seed"] == "0"
    assert "numpy" in named


def test_two_files_of_one_name_are_refused(folder: Path) -> None:
    """Fails when the second file silently replaces the first."""
    done = invoke("verify", write_right(folder), *LLAMA, "--json", "one", "--junit", "./one")
    assert done.exit_code == 2
    assert done.stderr == "blocklaws: one is named for two files; give each a name of its own\n"


@pytest.mark.skipif(not Path("/proc/self").exists(), reason="a folder that takes no files from root either")
def test_a_folder_that_takes_no_files_is_told_before_the_run(folder: Path) -> None:
    """Fails when the permissions of a folder are believed, and a run of hours ends without its report."""
    done = invoke("verify", write_right(folder), *LLAMA, "--json", "/proc/report.json")
    assert (done.exit_code, done.stdout) == (2, "")
    assert done.stderr == "blocklaws: cannot write /proc/report.json: No such file or directory\n"


def test_the_longest_name_that_a_file_can_have_is_written(folder: Path) -> None:
    """Fails when the file that is gathered beside a report needs a longer name than the report, or stays there."""
    name = "r" * 250 + ".json"
    done = invoke("verify", write_right(folder), *LLAMA, "--json", name)
    assert (done.exit_code, done.stderr) == (0, "")
    assert Path(name).exists()
    assert [path.name for path in Path().glob(".r*")] == []


def test_a_file_that_cannot_be_written_costs_no_other(folder: Path) -> None:
    """Fails when a full disk loses the verdicts, hides a violation, or loses the files that have room."""
    wrong = write_broken(folder)
    files = ("--json", "/dev/full", "--markdown", "summary.md")
    done = invoke("verify", wrong, *LLAMA, *files)
    assert done.exit_code == 1
    assert "VIOLATED no-look-ahead" in done.stdout
    assert "exit status 1: something is violated or in error" in done.stdout
    assert done.stderr == "blocklaws: cannot write /dev/full: No space left on device\n"
    assert (folder / "summary.md").exists()
    done = invoke("verify", write_right(folder), *LLAMA, *files)
    assert done.exit_code == 2
    assert "exit status 2: everything that was checked holds, but a file could not be written" in done.stdout
    write(folder, old=holding(), new=holding())
    done = invoke("compare", "old.json", "new.json", "--markdown", "/dev/full")
    assert (done.exit_code, done.stderr) == (2, "blocklaws: cannot write /dev/full: No space left on device\n")


def test_half_a_character_does_not_lose_a_report(folder: Path) -> None:
    """Fails when a message with a lone surrogate, which has no place in a file, ends the command."""
    wrong = write_wrong(folder, r"raise ValueError('\ud800')")
    done = invoke(
        "verify", wrong, *LLAMA, "--json", "r.json", "--markdown", "r.md", "--junit", "r.xml", "--badge", "r.svg"
    )
    assert done.exit_code == 1
    assert done.stderr == ""
    assert not refused(json.loads((folder / "r.json").read_text(encoding="utf-8")))
