"""The HTML report as a text: its structure, what it says, and that nothing in it is markup but its own.

Must hold: every case of a run has one row, every failing case a way to its failure, and the same page can be made from
the JSON; whatever a backend, a spec or an exception says is text. Must not: pin wording or looks, which may get better.
What only a browser can tell is in test_html_in_a_browser.py.
"""

from __future__ import annotations

import base64
import dataclasses
import functools
import hashlib
import itertools
import json
import math
import re
import shlex
from pathlib import Path
from typing import Any

import pytest
from faces_support import invoke, write_broken, write_right, write_spec
from html_support import HOSTILE, Element, faulty, hostile_report, large_report, parsed, small_matrix, wrong_report

import blocklaws
from blocklaws.canonical import STAGES
from blocklaws.causes import causes
from blocklaws.cli import cli
from blocklaws.errors import BlocklawsError
from blocklaws.html import faults_page, report_from, verify_page
from blocklaws.html.diagram import STATES, block_diagram
from blocklaws.html.failures import MOST_IN_FULL
from blocklaws.html.planes import LEVELS, difference_plane, weights_plane, where
from blocklaws.html.rendering import plain
from blocklaws.html.words import number, percent, used
from blocklaws.kill_results import Plan
from blocklaws.report import Report

PAGES = {
    "wrong": lambda: verify_page(wrong_report()),
    "hostile": lambda: verify_page(hostile_report()),
    "unchecked": lambda: verify_page(dataclasses.replace(wrong_report(), cases=wrong_report().cases[-1:])),
    "empty": lambda: verify_page(dataclasses.replace(wrong_report(), cases=(), meanings={})),
    "faults": lambda: faults_page(small_matrix()),
}


@functools.cache
def page(name: str) -> Element:
    """Return the elements of one of the pages."""
    return parsed(PAGES[name]())


every_page = pytest.mark.parametrize("name", PAGES)


# --- structure ---


@every_page
def test_landmarks_and_headings(name: str) -> None:
    """Fails when a screen reader has no landmarks to go to, or headings skip a level."""
    root = page(name)
    assert root.one("html").attributes["lang"] == "en"
    assert root.one("head").one("title").text
    for landmark in ("header", "main", "footer"):
        root.one(landmark)
    assert all(nav.attributes.get("aria-label") for nav in root.all("nav"))
    assert all(section.attributes.get("aria-labelledby") for section in root.all("section"))
    levels = [int(element.tag[1]) for element in root.all("h1", "h2", "h3", "h4", "h5", "h6")]
    assert levels[0] == 1
    assert levels.count(1) == 1
    assert all(after <= before + 1 for before, after in itertools.pairwise(levels)), levels
    skip = root.all("a")[0]
    assert skip.attributes["href"] == f"#{root.one('main').attributes['id']}"


@every_page
def test_every_reference_resolves(name: str) -> None:
    """Fails when a link of the page leads nowhere, or a name is that of nothing."""
    root = page(name)
    ids = {element.attributes["id"] for element in root if "id" in element.attributes}
    for element in root:
        if "href" in element.attributes:
            assert element.attributes["href"].removeprefix("#") in ids, element.attributes
        for word in element.attributes.get("aria-labelledby", "").split():
            assert word in ids, element.attributes
    markup = "".join(f"{value} " for element in root for value in element.attributes.values())
    assert set(re.findall(r"url\(#([^)]*)\)", markup)) <= ids


@every_page
def test_tables_have_captions_and_scopes(name: str) -> None:
    """Fails when a cell is read out without the row and column that it belongs to."""
    tables = page(name).all("table")
    for table in tables:
        assert table.one("caption").text
        heads = table.all("th")
        assert heads
        assert all(head.attributes.get("scope") in ("col", "row", "rowgroup") for head in heads)
        for row in table.one("thead").all("tr") if table.all("thead") else []:
            wide = len(row.all("th", "td"))
            for line in table.all("tr"):
                spans = [int(cell.attributes.get("colspan", "1")) for cell in line.all("th", "td")]
                assert sum(spans) == wide, line.text
    assert tables or name == "empty"


@every_page
def test_pictures_have_a_name_and_a_description(name: str) -> None:
    """Fails when whoever cannot see a diagram is told nothing."""
    for picture in page(name).all("svg"):
        assert picture.attributes["role"] == "img"
        assert picture.one("title").attributes["id"] == picture.attributes["aria-labelledby"]
        assert picture.one("desc").attributes["id"] == picture.attributes["aria-describedby"]
        assert len(picture.one("title").text) > 5
        assert len(picture.one("desc").text) > 20


@every_page
def test_what_scrolls_can_be_reached(name: str) -> None:
    """Fails when a table that is wider than a phone cannot be scrolled with the keyboard, or has no name."""
    root = page(name)
    for region in [*root.all(class_="scroll"), *root.all(class_="planes"), *root.all("pre")]:
        assert (region.attributes["role"], region.attributes["tabindex"]) == ("region", "0")
        assert region.attributes.get("aria-label") or region.attributes.get("aria-labelledby")
    assert all(
        any(parent in classes_around(table) for parent in ("scroll", "planes", "told"))
        for table in root.all("table")
    )  # fmt: skip


def classes_around(element: Element) -> set[str]:
    """Return the classes of what an element stands in."""
    found: set[str] = set()
    above = element.parent
    while above is not None:
        found |= set(above.attributes.get("class", "").split())
        above = above.parent
    return found


@every_page
def test_nothing_is_loaded_and_one_script_may_run(name: str) -> None:
    """Fails when the page needs a network, or would run a script that somebody else wrote."""
    root = page(name)
    assert not root.all("link", "img", "iframe", "object", "embed", "base", "form", "button")
    for element in root:
        assert "src" not in element.attributes
        assert not [name for name in element.attributes if name.startswith("on")]
    script = root.one("script")
    digest = base64.b64encode(hashlib.sha256(str(script.children[0]).encode()).digest()).decode()
    policy = next(
        meta.attributes["content"]
        for meta in root.all("meta")
        if meta.attributes.get("http-equiv") == "Content-Security-Policy"
    )
    assert "default-src 'none'" in policy
    assert f"script-src 'sha256-{digest}'" in policy
    style = str(root.one("style").children[0])
    assert "@import" not in style
    assert "url(" not in style
    assert "prefers-color-scheme: dark" in style
    assert "@media print" in style


def test_the_reader_refuses_what_a_browser_would_repair() -> None:
    """Fails when the checks above would pass a page that is not well formed."""
    for bad in ("<p><b>x</p></b>", "<p>x", "<p id=a>x</p><p id=a>y</p>", '<p a="1" a="2">x</p>'):
        with pytest.raises(AssertionError):
            parsed(bad)
    assert parsed("<p>a &lt;b&gt;<br>c</p>").text == "a <b>c"


# --- what other people wrote ---


def test_hostile_texts_stay_texts() -> None:
    """Fails when a name, a sentence, a reason or a path can become markup, or reaches the page raw."""
    raw = PAGES["hostile"]()
    raw.encode("utf-8")  # no half of a surrogate pair
    assert not re.search("[\x00-\x08\x0b-\x1f\x7f-\x9f\u202a-\u202e\u2066-\u2069]", raw)
    assert "<script>alert" not in raw
    root = page("hostile")
    assert len(root.all("script")) == 1
    shown = plain(HOSTILE)
    assert shown == "<script>alert(1)</script>\"' onload=x &amp; \\x1b[31mred\\x00\\x7f\\u202eright\\ud800"
    text = root.text
    for word in ("backend", "block", "reason", "says", "location", "pattern", "claim", "divergence", "known"):
        assert f"{word}{shown}" in text, word
    assert f"known.yaml:3: {shown}" in text


def test_hostile_texts_of_a_matrix_stay_texts() -> None:
    """Fails when a fault of somebody else's spec can become markup."""
    data = json.loads(json.dumps(small_matrix()).replace("gain-missing", json.dumps(HOSTILE)[1:-1]))
    raw = faults_page(data)
    assert "<script>alert" not in raw
    root = parsed(raw)
    assert len(root.all("script")) == 1
    assert plain(HOSTILE) in root.text


def test_a_page_can_be_written_and_read(tmp_path: Path) -> None:
    """Fails when the command line cannot write what a backend calls itself."""
    report = hostile_report()
    path = tmp_path / "page.html"
    path.write_text(verify_page(report), encoding="utf-8")
    assert parsed(path.read_text(encoding="utf-8")).one("h1").text


# --- everything is there ---


def rows_of_cases(root: Element) -> list[Element]:
    """Return the rows of all cases."""
    return [row for details in root.all("details", class_="cases") for row in details.one("tbody").all("tr")]


@pytest.mark.parametrize("report", [wrong_report, hostile_report, lambda: large_report(600)])
def test_every_case_has_one_row_and_every_failure_a_way(report: Any) -> None:
    """Fails when a case is dropped or told twice, or a failing one does not lead to its failure."""
    made: Report = report()
    root = parsed(verify_page(made))
    rows = rows_of_cases(root)
    assert len(rows) == len(made.cases)
    wanted = sorted((plain(case.block), plain(case.dtype), plain(case.backend)) for case in made.cases)
    cells = [[cell.text for cell in row.all("th", "td")] for row in rows]
    assert sorted((line[1], line[2], line[0]) for line in cells) == [
        tuple(" ".join(part.split()) for part in each) for each in wanted
    ]
    linked = [row for row in rows if row.all("a")]
    assert len(linked) == len(made.failures)
    told = {element.attributes.get("id"): element for element in root}
    for row in linked:
        target = told[row.one("a").attributes["href"].removeprefix("#")]
        assert target.tag == "tr" or "failure" in classes_around(target)


def test_cells_count_their_cases() -> None:
    """Fails when a cell of a matrix and the cases behind it disagree."""
    report = wrong_report()
    by_invariant, by_block = page("wrong").all("table", class_="matrix")
    for table, key in ((by_invariant, "invariant"), (by_block, "block")):
        for row in [row for row in table.all("tr") if row.all("td")]:
            name = row.one("th").text
            cases = [case for case in report.cases if getattr(case, key) == name]
            assert cases
            total = sum(int(value) for cell in row.all("td") for value in re.findall(r"[✓✗!?≈]\s*(\d+)", cell.text))
            assert total == len(cases), name


def test_failures_beyond_the_cap_are_rows_and_said() -> None:
    """Fails when a failure disappears because there are many, or nobody is told that some are short."""
    report = large_report(3000)
    failing = [case for case in report.cases if case.failed]
    # As many causes as there are failures: no two of them name one stage.
    cases = {id(case): dataclasses.replace(case, stage=f"stage {number}") for number, case in enumerate(failing)}
    report = dataclasses.replace(report, cases=tuple(cases.get(id(case), case) for case in report.cases))
    root = parsed(verify_page(report))
    full = root.all("article", class_="failure")
    assert len(full) == MOST_IN_FULL
    section = root.one("section", id="failures")
    brief = [row for row in section.all("tr") if row.attributes.get("id", "").startswith("f")]
    assert len(full) + len(brief) == len(causes(report.failures)) == len(failing)
    assert f"{len(brief)} further causes" in section.text


def test_failures_of_one_cause_are_together() -> None:
    """Fails when one mistake is told as many, or an invariant that it breaks cannot be looked into."""
    report = wrong_report()
    full = page("wrong").all("article", class_="failure")
    found = causes(report.failures)
    assert len(full) == sum(len({case.name for case in (cause.smallest, *cause.others)}) for cause in found)
    heads = [each for each in full if " · as in " not in each.all("summary")[0].text]
    assert [len(others(each)) for each in heads] == [len(cause.others) for cause in found]
    assert [not others(each) for each in full if each not in heads] == [True] * (len(full) - len(heads))


def others(details: Element) -> list[Element]:
    """Return the rows of the other cases that fail like one shown in full."""
    tables = [table for table in details.all("table") if table.one("caption").text.startswith("Other cases of")]
    return tables[0].one("tbody").all("tr") if tables else []


def test_a_failure_tells_everything() -> None:
    """Fails when a reader of the page knows less than one of the terminal."""
    result = wrong_report().failures[0]
    details = page("wrong").all("article", class_="failure")[0]
    assert "open" in details.all("details")[0].attributes
    text = details.text
    assert result.element is not None
    for part in (
        result.says, result.location, result.claim, result.clause_at, result.pattern, result.divergence,
        f"{result.element['got']:.9g}", f"{result.element['want']:.9g}", "batch 0, token 0, feature 0",
        f"{result.element['wrong']} of {result.element['total']} elements", "d_model 4", "B 1, T 2, values integers",
        "from blocklaws.replaying import examine", "A norm reads other tokens", "A decoder that sees the future",
    ):  # fmt: skip
        assert part in text, part
    # The stages, in order, the first one outside marked by a word.
    stages = next(table for table in details.all("table") if "Each stage" in table.one("caption").text)
    rows = [[cell.text for cell in row.all("th", "td")] for row in stages.one("tbody").all("tr")]
    assert rows[0][:2] == ["attention_norm", "✗ first outside"]
    assert [row[0] for row in rows][-1] == "output"
    assert "Attention_norm is the first outside its bound;" in details.one("svg", class_="diagram").one("desc").text
    captions = [table.one("caption").text for table in details.all("table", class_="plane")]
    assert captions[:3] == ["The block", "The reference", "|difference| in attention_norm"]
    assert "|difference| in output" in captions


def test_a_named_backend_can_be_replayed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Fails when the page of a run does not say how to see a failure, or the run, again."""
    monkeypatch.chdir(tmp_path)
    write_spec(tmp_path)
    arguments = ("verify", write_broken(tmp_path), write_right(tmp_path), "--spec", "spec.yaml", "--block", "llama")
    done = invoke(*arguments, "--json", "report.json", "--html", "report.html")
    assert done.exit_code == 1
    data = json.loads((tmp_path / "report.json").read_text(encoding="utf-8"))
    root = parsed((tmp_path / "report.html").read_text(encoding="utf-8"))
    codes = [element.text for element in root.all("pre")]
    ids = [case["id"] for case in data["cases"] if case["id"]]
    assert f"blocklaws replay {ids[0]}" in codes
    assert (
        "blocklaws verify broken.py:Backend right.py:Backend --block llama --profile default --seed 0 --spec spec.yaml"
        in codes
    )
    assert data["command"] in codes
    assert "the block has no gradients" in root.one("section", id="unchecked").text
    assert "same-shape" in root.one("section", id="verdicts").text


def test_a_block_without_trace_says_that_only_its_output_is_compared() -> None:
    """Fails when a reader takes stages that were never seen for right ones."""

    class Silent:
        name = "silent"
        dtypes = ("float32",)

        def build(self, config: Any, parameters: Any, dtype: str) -> Any:
            inner = faulty("mask-off-by-one").build(config, parameters, dtype)

            class Block:
                def forward(self, x: Any, position_offset: int = 0) -> Any:
                    return inner.forward(x, position_offset)

            return Block()

    report = blocklaws.verify(Silent(), blocks=["llama"], invariants=["output-parity"], profile="quick")
    root = parsed(verify_page(report))
    details = root.one("article", class_="failure")
    assert "The block shows no stages (it has no trace), so its output alone is compared." in details.text
    stages = next(table for table in details.all("table") if "Each stage" in table.one("caption").text)
    assert [row.one("th").text for row in stages.one("tbody").all("tr")] == ["output"]
    assert "ttention_weights is what the experiments leave" in details.one("svg", class_="diagram").one("desc").text
    assert re.search(r"\d+ experiments on forward alone", details.text)


@pytest.mark.parametrize(
    ("change", "told"),
    [
        ({}, "3 invariants fail on backend numpy"),
        ({"cases": ()}, "Nothing could be checked"),
        ({"cases": "those that hold"}, "Everything that was checked holds"),
        ({"cases": "those that hold", "stale": ("known.yaml:3: never matched",)}, "A known failure is stale"),
    ],
)
def test_the_heading_says_how_it_went(change: dict[str, Any], told: str) -> None:
    """Fails when the first line of a page is not the result of the run."""
    if change.get("cases"):
        change = {**change, "cases": tuple(case for case in wrong_report().cases if case.verdict == "holds")}
    report = dataclasses.replace(wrong_report(), **change)
    assert parsed(verify_page(report)).one("h1").text == told


def test_a_page_can_be_made_from_the_json() -> None:
    """Fails when a stored report can no longer become the page that the run itself would have written."""
    report = wrong_report()
    data = json.loads(json.dumps(report.as_dict(), allow_nan=False))
    again = report_from({**data, "a key of a later version": 1})
    assert verify_page(again) == verify_page(dataclasses.replace(report, cases=tuple(
        dataclasses.replace(case, seconds=round(case.seconds, 4)) for case in report.cases
    )))  # fmt: skip


@pytest.mark.parametrize(
    ("data", "told"),
    [
        ([], "stored.json: is no report of `blocklaws verify` (it has no 'blocklaws' version)"),
        ({"blocklaws": "1"}, "stored.json: is no report of `blocklaws verify` (it has no list of 'cases')"),
        ({"blocklaws": "1", "cases": []}, "stored.json: is no report of `blocklaws verify` (it has no 'spec')"),
        ({"blocklaws": "1", "cases": [3]}, "stored.json: cases[0]: is no case of a report (it lacks every key)"),
    ],
)
def test_what_is_no_report_is_refused(data: Any, told: str) -> None:
    """Fails when a damaged report is a traceback."""
    if isinstance(data, dict) and data.get("cases") == [3]:
        data |= {"spec": {}, "seed": 0, "profile": "", "backends": []}
    with pytest.raises(BlocklawsError) as refused:
        report_from(data, "stored.json")
    assert str(refused.value) == told


@pytest.mark.parametrize(
    ("change", "told"),
    [
        ({"verdict": "fine"}, "the verdict 'fine' is none of holds, violated, unchecked, error"),
        ({"max_error": "much"}, "is damaged: could not convert string to float: 'much'"),
        ({"nearest": [1]}, "is damaged: not enough values to unpack (expected 2, got 1)"),
    ],
)
def test_a_damaged_case_is_refused(change: dict[str, Any], told: str) -> None:
    """Fails when one wrong value of a stored report is a traceback."""
    data = wrong_report().as_dict()
    data["cases"][1] |= change
    with pytest.raises(BlocklawsError) as refused:
        report_from(data)
    assert str(refused.value) == f"the report: cases[1]: {told}"


# --- the kill matrix ---


def test_every_fault_has_its_row_with_rates(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Fails when a fault is left out, or a rate is not over all seeds."""
    root = page("faults")
    assert root.one("h1").text == "1 fault survived"
    table = root.one("table", class_="matrix")
    rows = {row.one("th").text: [cell.text for cell in row.all("td")] for row in table.all("tr") if row.all("td")}
    assert list(rows) == ["norm-over-tokens", "gain-missing", "mask-off-by-one"]
    assert rows["norm-over-tokens"][0] == "✓ 100 %"
    assert rows["gain-missing"][0] == "✗ 50 % alive"
    assert "gain-missing" in root.one("section", id="survivors").text
    details = root.all("details", class_="cases")
    assert [element.one("b").text for element in details] == list(rows)
    assert "rms-norm-definition 100 %" in details[0].text
    assert "blocklaws faults numpy --block llama --dtype float32" in root.one("section", id="run").text
    assert "the kill matrix" in root.one("svg", class_="map").one("title").text.lower()


def test_the_command_writes_both_files(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Fails when `faults --html` writes no page, or one that `--json` does not lead to."""
    monkeypatch.chdir(tmp_path)
    done = invoke(
        "faults", "numpy", "--fault", "mask-missing", "--invariant", "prefix-invariance", "--block", "llama",
        "--profile", "quick", "--json", "kills.json", "--html", "kills.html",
    )  # fmt: skip
    assert done.exit_code == 0, done.output
    data = json.loads((tmp_path / "kills.json").read_text(encoding="utf-8"))
    assert faults_page(data) == (tmp_path / "kills.html").read_text(encoding="utf-8")


def test_the_command_of_a_matrix_measures_the_same() -> None:
    """Fails when whoever types the command of a page gets another matrix."""
    plan = Plan(
        ("numpy", "torch"), "my spec.yaml", ("llama",), ("float32",), ("gain-missing",), ("liveness",), "quick", 3, 2,
        claims_only=True, first_kill=True, every=True,
    )  # fmt: skip
    words = shlex.split(plan.command)
    assert words[:2] == ["blocklaws", "faults"]
    context = cli.commands["faults"].make_context("faults", words[2:])
    asked = {name: tuple(value) if isinstance(value, list | tuple) else value for name, value in context.params.items()}
    for field in dataclasses.fields(plan):
        assert asked[field.name] == getattr(plan, field.name), field.name


@pytest.mark.parametrize("command", [("verify", "numpy"), ("faults", "numpy")])
def test_a_place_that_cannot_be_written_is_refused_first(tmp_path: Path, command: tuple[str, ...]) -> None:
    """Fails when minutes of work are lost to a folder that is not there."""
    done = invoke(*command, "--html", tmp_path / "missing" / "page.html")
    assert done.exit_code == 2
    assert f"cannot write {tmp_path / 'missing' / 'page.html'}: there is no folder" in done.stderr


# --- parts ---


@pytest.mark.parametrize(
    ("placement", "residual"),
    [("pre", "sequential"), ("post", "sequential"), ("inside", "sequential"), ("pre", "parallel")],
)
def test_a_diagram_shows_both_streams_without_colour(placement: str, residual: str) -> None:
    """Fails when paths, branches and additions can be told apart by colour alone, or a stage is missing."""
    states = dict(zip(STAGES[1:], ["within", "first", *["outside"] * 6, "unseen", "suspect"], strict=True))
    picture = parsed(str(block_diagram({"placement": placement, "residual": residual}, states, "d"))).one("svg")
    boxes = {group.all("text")[0].text: group for group in picture.all("g", class_="stage")}
    assert set(boxes) == set(STAGES[1:])
    for stage, group in boxes.items():
        assert group.all("text")[1].text == STATES[states[stage]][0]
    assert len(picture.all("g", class_="addition")) == 2
    assert all(len(group.all("circle")) == 2 for group in picture.all("g", class_="addition"))
    assert len(picture.all("path", class_="identity")) >= 2
    assert len(picture.all("path", class_="branch")) >= 6
    described = picture.one("desc").text
    assert ("both branches read the input" in described) is (residual == "parallel")
    assert all(f"{stage} is {STATES[state][1]}" in described or stage == STAGES[1] for stage, state in states.items())
    # Everything lies inside of the picture.
    width, height = (float(value) for value in picture.attributes["viewbox"].split()[2:])
    for box in picture.all("rect"):
        x, y, w, h = (float(box.attributes[name]) for name in ("x", "y", "width", "height"))
        assert x >= 0
        assert x + w <= width
        assert y >= 0
        assert y + h <= height


def plane(got: Any, want: Any, axes: tuple[str, ...] = ("batch", "token", "feature"), **more: Any) -> dict[str, Any]:
    """Return a plane as a report has it."""
    return {
        "axes": list(axes), "at": [0] * (len(axes) - 2), "from": [0, 0], "of": [len(got), len(got[0])], "got": got,
        "want": want, **more,
    }  # fmt: skip


def test_a_heat_map_shows_differences() -> None:
    """Fails when equal elements look different, or the worst one and NaN do not stand out."""
    shown = plane([[1.0, 2.0], [3.0, "nan"]], [[1.0, 2.5], [7.0, 4.0]], at=[1])
    root = parsed(str(difference_plane(shown, "title", "p")))
    cells = [(cell.text, cell.attributes["class"]) for cell in root.one("tbody").all("td")]
    assert cells == [("0", "h0"), ("0.5", "h1"), ("4", f"h{LEVELS}"), ("NaN", f"h{LEVELS}")]
    assert [head.text for head in root.one("thead").all("th")] == ["0", "1"]
    assert where(shown) == "batch 1"


def test_a_large_plane_is_a_picture_with_the_same_facts() -> None:
    """Fails when a plane that is too large for a table loses elements, or its worst one."""
    got = [[float(row == 5 and column == 7) for column in range(24)] for row in range(20)]
    want = [[0.0] * 24 for _ in range(20)]
    shown = plane(got, want, **{"from": [40, 0], "of": [67, 24]})
    root = parsed(str(difference_plane(shown, "title", "p")))
    paths = {path.attributes["class"]: path.attributes["d"] for path in root.all("path")}
    assert sum(path.count("M") for path in paths.values()) == 20 * 24
    assert paths[f"h{LEVELS}"] == "M7 5h1v1h-1z"
    assert "the largest is 1 at token 45, feature 7" in root.one("desc").text
    assert where(shown) == "batch 0, token 40 to 59 of 67"


def test_masked_keys_have_a_pattern_and_a_leak_a_word() -> None:
    """Fails when a weight on the future looks like any other, or hidden keys like visible ones."""
    axes = ("batch", "head", "query", "key")
    root = parsed(str(weights_plane(plane([[0.9, 0.1], [0.5, 0.5]], [[1, 0], [0.5, 0.5]], axes), "got", "t", "p")))
    cells = [(cell.text, cell.attributes["class"]) for cell in root.one("tbody").all("td")]
    assert cells[0] == ("0.9", f"w{LEVELS}")
    assert cells[1] == ("0.1, masked, yet seen", "masked leak")
    root = parsed(str(weights_plane(plane([[0.9, 0.1], [0.5, 0.5]], [[1, 0], [0.5, 0.5]], axes), "want", "t", "p")))
    assert [cell.text for cell in root.one("tbody").all("td")][1] == "0, masked"
    # In a window, and with more keys than queries, which keys a query may see is counted from the whole.
    large = [[0.04] * 24 for _ in range(24)]
    shown = plane(large, large, axes, **{"from": [10, 10], "of": [67, 67]})
    root = parsed(str(weights_plane(shown, "got", "t", "p")))
    paths = {path.attributes.get("class"): path.attributes["d"] for path in root.all("path")}
    assert paths["masked"].count("M") == paths["leak"].count("M") == 24 * 23 // 2
    assert "masked keys are seen at 276 places, the first query 10, key 11" in root.one("desc").text


@pytest.mark.parametrize(
    ("value", "told"),
    [(1.23456, "1.23"), (0.0, "0"), (1e-9, "1e-09"), (None, ""), ("nan", "NaN"), (math.inf, "∞"), ("-inf", "−∞")],
)
def test_numbers_are_short(value: Any, told: str) -> None:
    """Fails when a number that is none breaks the page, or one is told with too many digits to compare."""
    assert number(value) == told


@pytest.mark.parametrize(
    ("nearest", "told"),
    [
        (None, ""),
        ((0.0, 0.0), "none of none"),
        ((2.0, 0.0), "2 where none is allowed"),
        ((1e-7, 1e-6), "10 % of 1e-06"),
        ((1e-9, 1e-6), "< 1 % of 1e-06"),
        ((0.0, 1e-6), "0 % of 1e-06"),
        ((3e-6, 1e-6), "300 % of 1e-06"),
        ((1.0, 1e-6), "1e+06 times 1e-06"),
        ((math.inf, 1e-6), "∞ of 1e-06"),
    ],
)
def test_what_was_used_of_a_bound(nearest: Any, told: str) -> None:
    """Fails when nobody can see how near a case came to its bound."""
    assert used(nearest) == told


def test_a_hundred_percent_means_all() -> None:
    """Fails when a rate is rounded up to certainty."""
    assert [percent(share) for share in (1.0, 0.9999, 0.5, 0.0)] == ["100 %", "99.9 %", "50 %", "0 %"]
