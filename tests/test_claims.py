"""What a backend says that it supports and no block of a run has: it is told, and no verdict.

Must hold: each such word is told once a backend, wherever a run is told, and survives shards and files; a backend that
makes no claims hears nothing.
"""

from __future__ import annotations

import dataclasses
import json
from pathlib import Path
from typing import Any

import jsonschema
import pytest
from faces_support import invoke, write_right, write_spec

from blocklaws.claims import never_met
from blocklaws.config import BlockConfig
from blocklaws.report_reading import read_report
from blocklaws.report_restoring import report_from
from blocklaws.report_schema import report_schema

GPT = BlockConfig(
    block="gpt", d_model=8, n_heads=2, n_kv_heads=2, d_head=4, d_ff=6, norm="layer", norm_eps=1e-5, placement="pre",
    feed_forward="gelu", rotary=None, rotary_base=1e4, bias=True, max_positions=64,
)  # fmt: skip
CLAIMING = """

class Claiming(Backend):
    name = "claiming"
    dtypes = ("float32",)
    claims = {"norm": ["rms", "layer"], "feed_forward": ["swiglu", "gelu", "relu"], "heads": ["equal", "grouped"]}

    def supports(self, config):
        return "no biases" if config.bias else None
"""
TOLD = "claiming supports what no block of this run has: "


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Run in a folder with a small spec and an adapter that makes claims."""
    monkeypatch.chdir(tmp_path)
    write_spec(tmp_path)
    write_right(tmp_path, "claiming.py")
    with Path("claiming.py").open("a", encoding="utf-8") as stream:
        stream.write(CLAIMING)
    return tmp_path


@pytest.mark.parametrize(
    ("claims", "changes", "told"),
    [
        ({"feed_forward": ("gelu", "relu")}, [{}], ("feed_forward relu",)),
        ({"feed_forward": ("gelu", "relu")}, [{}, {"feed_forward": "relu"}], ()),
        ({"bias": (False, True, "qkv")}, [{}], ("bias false", "bias qkv")),
        ({"rotary": (None, "half")}, [{}], ("rotary half",)),
        ({"window": (None, "number"), "softcap": (None, "number")}, [{"window": 3}], ("window null", "softcap number")),
        ({"heads": ("equal", "grouped")}, [{}], ("heads grouped",)),
        ({"heads": ("equal", "grouped")}, [{"n_kv_heads": 1}], ("heads equal",)),
        ({"norm": ("rms",)}, [], ()),
    ],
)
def test_a_word_is_met_where_a_block_has_it(
    claims: dict[str, Any], changes: list[dict[str, Any]], told: tuple[str, ...]
) -> None:
    """Fails if a word that a block has is called unmet, or one that none has is passed over."""
    assert never_met(claims, [dataclasses.replace(GPT, **each) for each in changes]) == told


@pytest.mark.parametrize("isolate", ["--no-isolate", "--isolate"])
def test_a_run_tells_what_nothing_in_it_has(isolate: str) -> None:
    """Fails if a claim that no block of a run has looks like one that was looked at, on a terminal or in a file."""
    arguments = (
        "claiming.py:Claiming",
        "--spec",
        "spec.yaml",
        "--invariant",
        "same-shape",
        "--profile",
        "quick",
        isolate,
    )
    done = invoke("verify", *arguments, "--json", "report.json", "--markdown", "report.md", "--html", "report.html")
    assert done.exit_code == 0, done.output
    # Only a kind with biases, which the backend does not take, has a LayerNorm or no gate.
    words = ["norm layer", "feed_forward gelu", "feed_forward relu"]
    assert " ".join(done.output.split()).count(TOLD + ", ".join(words)) == 1
    data = json.loads(Path("report.json").read_text(encoding="utf-8"))
    assert data["backends"][0]["never_met"] == words
    jsonschema.validate(data, report_schema("verify"))
    assert read_report(Path("report.json")).data["backends"] == data["backends"]
    assert report_from(data).as_dict()["backends"] == data["backends"]
    for name in ("report.md", "report.html"):
        assert "supports what no block of this run has" in Path(name).read_text(encoding="utf-8")
    narrowed = invoke("verify", *arguments, "--block", "llama")
    assert f"{TOLD}norm layer, feed_forward gelu, feed_forward relu, heads grouped" in " ".join(narrowed.output.split())


def test_shards_tell_what_the_whole_run_has_not(folder: Path) -> None:
    """Fails if a shard calls unmet what another has, or a merged report has forgotten it."""
    arguments = ("claiming.py:Claiming", "--spec", "spec.yaml", "--profile", "quick", "--no-isolate")
    for number in (1, 2, 3):
        invoke("verify", *arguments, "--shard", f"{number}/3", "--json", f"{number}.json")
    done = invoke("merge", "1.json", "2.json", "3.json", "--json", "all.json")
    assert done.exit_code == 0, done.output
    [backend] = json.loads(Path("all.json").read_text(encoding="utf-8"))["backends"]
    assert backend["never_met"] == ["norm layer", "feed_forward gelu", "feed_forward relu"]
    assert TOLD in done.output


def test_a_backend_without_claims_hears_nothing() -> None:
    """Fails if a built-in backend, which takes every block, is told of what a run leaves out."""
    done = invoke(
        "verify", "numpy", "--spec", "spec.yaml", "--block", "llama", "--json", "report.json", "--html", "page.html"
    )
    assert done.exit_code == 0, done.output
    assert "no block of this run" not in done.output + Path("page.html").read_text(encoding="utf-8")
    assert "never_met" not in Path("report.json").read_text(encoding="utf-8")
