"""The causal models of transformers: a few are built and verified, and what is known of all of them is kept in order.

Must hold: the sweep over every class is `make conformance`'s business; here is what would make it lie: a model that is
not built, a leak that is not seen, a list of known failures that no longer says what it is about.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from faces_support import invoke

from blocklaws.backends.transformers_models import family
from blocklaws.errors import BackendError
from blocklaws.known_failures import KnownFailures
from blocklaws.running import verify
from blocklaws.spec_reading import load_spec

KNOWN = Path("backends") / "transformers_models" / "known.yaml"
KINDS = ("by design: ", "limit: ", "defect: ")


@pytest.fixture(scope="module")
def known(root: Path) -> KnownFailures:
    return KnownFailures.load(root / KNOWN)


@pytest.mark.slow
@pytest.mark.parametrize(
    "model", ["LlamaForCausalLM", "GPT2LMHeadModel", "MixtralForCausalLM", "Gemma2ForCausalLM", "BertLMHeadModel"]
)
def test_an_architecture_holds(model: str) -> None:
    """Fails when a common architecture cannot be built small, or an invariant refutes it."""
    report = verify(f"transformers-models:{model}", profile="survey")
    assert [(case.invariant, case.backend, case.reason) for case in report.failures] == []
    eager = [case for case in report.cases if case.backend == "transformers-eager"]
    assert {case.verdict for case in eager} == {"holds"}
    assert {case.invariant for case in eager} == set(load_spec().models)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("model", "invariants"),
    [
        ("XLMWithLMHeadModel", {"logits-prefix-invariance", "logits-under-truncation"}),
        ("RobertaForCausalLM", {"logits-cache-parity", "logits-cache-in-chunks", "logits-under-left-padding"}),
        ("MambaForCausalLM", {"logits-cache-in-chunks"}),
    ],
)
def test_what_is_known_to_fail_fails(root: Path, model: str, invariants: set[str]) -> None:
    """Fails when a model that is known to leak, or to contradict itself, is passed."""
    report = verify(f"transformers-models:{model}", profile="survey", known_failures=root / KNOWN)
    eager = [case for case in report.cases if case.backend == "transformers-eager"]
    assert {case.invariant for case in eager if case.known} == invariants
    assert report.exit_status == 0, str(report)


def test_every_known_failure_says_what_kind_it_is(known: KnownFailures) -> None:
    """Fails when a defect could be taken for a design, or an entry speaks of no model or invariant."""
    models, invariants = family("")[0].models, load_spec().models
    for entry in known.entries:
        assert entry.reason.startswith(KINDS), entry.reason
        assert entry.block in models
        assert entry.invariant in invariants


def test_the_page_tells_every_known_failure(root: Path, known: KnownFailures) -> None:
    """Fails when docs/models.md was not written anew after the list changed."""
    page = (root / "docs" / "models.md").read_text(encoding="utf-8")
    for entry in known.entries:
        # What only some seeds show, that of the page need not.
        assert entry.reason.partition(": ")[2] in page or not entry.strict, entry.reason
        assert f"`{entry.block}`" in page
    assert "Not known before" not in page


def test_one_family_has_both_implementations_of_attention() -> None:
    """Fails when a model is looked at with one of them only."""
    assert [one.name for one in family("LlamaForCausalLM")] == ["transformers-eager", "transformers-sdpa"]
    assert {one.models for one in family("LlamaForCausalLM")} == {("LlamaForCausalLM",)}


def test_a_model_that_is_not_there_is_refused() -> None:
    """Fails when a misspelt class ends in a traceback."""
    with pytest.raises(BackendError, match=r"no causal model 'LamaForCausalLM' \(did you mean 'LlamaForCausalLM'\?\)"):
        family("LamaForCausalLM")
    done = invoke("verify", "transformers-models:LamaForCausalLM")
    assert (done.exit_code, "Traceback" in done.output) == (2, False)


@pytest.mark.slow
def test_what_cannot_be_built_is_unchecked_with_the_reason() -> None:
    """Fails when a model that takes more than token ids is an error, or is left out in silence."""
    report = verify("transformers-models:MusicgenForCausalLM", profile="quick")
    assert {case.verdict for case in report.cases} == {"unchecked"}
    assert all(case.reason.startswith("it cannot be built small: ") for case in report.cases)
    assert report.exit_status == 2


def test_sizes_are_shrunk_and_choices_are_not() -> None:
    """Fails when shrinking leaves a model large, or makes another architecture of it."""
    from transformers import Gemma2Config, MixtralConfig

    from blocklaws.backends.transformers_models.shrinking import shrunk

    small: Any = shrunk(MixtralConfig)
    assert (small.vocab_size, small.hidden_size, small.num_hidden_layers, small.num_local_experts) == (64, 32, 2, 4)
    assert small.num_key_value_heads < small.num_attention_heads
    assert small.hidden_act == MixtralConfig().hidden_act
    gemma: Any = shrunk(Gemma2Config)
    assert gemma.sliding_window == 4
    assert gemma.attn_logit_softcapping == Gemma2Config().attn_logit_softcapping
    assert set(gemma.layer_types) == {"sliding_attention", "full_attention"}
