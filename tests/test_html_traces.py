"""The page of a trace: drawn and judged as the table on the terminal says, and nothing else."""

from __future__ import annotations

from pathlib import Path

import pytest
from faces_support import invoke
from html_support import HOSTILE, parsed, traced

from blocklaws.html import trace_page


def test_the_first_stage_outside_its_bound_is_marked() -> None:
    """Fails if the page names another stage than the trace, or marks it nowhere but in the headline."""
    data = traced("second-norm-reads-input")
    assert data["first_outside"] == "feed_forward_norm"
    page = parsed(trace_page([data]))
    assert page.one("h1").text == "numpy leaves the reference at feed_forward_norm"
    marked = [row for row in page.all("tr") if row.attributes.get("class") == "first"]
    assert [row.one("th").text for row in marked] == ["feed_forward_norm"]
    assert "first" in next(group for group in page.all("g", class_="first")).text
    assert [row.one("th").text for row in page.all("tr") if row.attributes.get("class") == "within"] == [
        "attention_norm", "query", "key", "value", "attention_weights", "attention_branch", "after_attention",
    ]  # fmt: skip


def test_a_right_block_is_said_to_lie_within_its_bounds() -> None:
    """Fails if a right block looks wrong, or has a heat map of nothing."""
    page = parsed(trace_page([traced()]))
    assert page.one("h1").text == "Every stage that is shown lies within its bound"
    assert not page.all("tr", class_="outside")
    assert [heading.text for heading in page.all("h3")] == ["The stages beside the reference", "Attention weights"]


def test_the_order_of_a_post_norm_block_is_its_own() -> None:
    """Fails if a norm that is computed after its branch is called the first to differ because it is listed first."""
    page = parsed(trace_page([traced("mask-missing", "original")]))
    assert page.one("h1").text == "numpy leaves the reference at attention_weights"


def test_what_a_backend_is_called_is_text() -> None:
    """Fails if the name of a backend can be markup."""
    page = parsed(trace_page([traced() | {"backend": HOSTILE}]))
    assert len(page.all("script")) == 1


def test_the_command_writes_the_page(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Fails if --html writes another trace than is printed, or takes records for stages."""
    monkeypatch.chdir(tmp_path)
    done = invoke("trace", "numpy", "--block", "gpt", "--html", "page.html")
    assert done.exit_code == 0
    assert "every stage that is shown lies within the bound of float64" in done.stdout
    assert "numpy, block gpt, float64" in parsed((tmp_path / "page.html").read_text(encoding="utf-8")).one("h2").text
    fixture = invoke("trace", "numpy", "--fixture", "identity-block", "--html", "fixture.html")
    assert fixture.exit_code == 0
    assert (tmp_path / "fixture.html").exists()
    records = invoke("trace", "numpy", "--fixture", "decoder-block-chapter", "--format", "strict", "--html", "no.html")
    assert records.exit_code == 2
    assert records.stderr == (
        "blocklaws: --html shows stages, and --format strict prints records; leave one of them out\n"
    )
    assert not (tmp_path / "no.html").exists()
