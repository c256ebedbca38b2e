"""blocklaws verifies Transformer decoder blocks against a spec of invariants."""
