"""Whole causal language models as subjects: token ids in, logits out, and nothing else known of them.

A model has no config, no stages and no reference here; it is judged by itself alone, in other calls. `subject` calls a
model with care, `runs` says which calls the names of an invariant stand for, `case` is a case of one model, `reading`
reads ``spec/models.yaml``. The words are those of blocks: invariant, informative, verdict, counterexample, replay.
"""
