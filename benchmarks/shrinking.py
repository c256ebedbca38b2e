"""How small the counterexample of every fault is, and what it costs to find and shrink it.

For each fault of a backend, the first invariant that claims it and refutes it is searched with shrinking on, and the
size of what is left is printed: sequences (B), tokens (T), heads, the pattern of the values, the examples until the
first failure, seconds. The smallest world is B = 1, T = 2 and integers. Exit status 1 when a causal fault (one that
`prefix-invariance` claims) ends with more than one sequence or two tokens, or nothing refutes a fault.

    python benchmarks/shrinking.py [BACKEND] [FAULT...]
"""

from __future__ import annotations

import sys
import time

from blocklaws import CaseResult
from blocklaws.discovery import find_subjects
from blocklaws.known_failures import KnownFailures
from blocklaws.planning import Choice, plan
from blocklaws.running import run_cases
from blocklaws.spec_reading import load_spec
from blocklaws.specification import Fault, Specification

CAUSAL = "prefix-invariance"


def smallest(backend: str, fault: Fault, spec: Specification) -> tuple[CaseResult, float] | None:
    """Return the shrunk failure of the first invariant that refutes a fault, and the seconds that it took."""
    subject = find_subjects(backend)[0].with_fault(fault.id)
    claiming = [one for one in spec.invariants.values() if fault.id in one.refuted_by]
    for invariant in sorted(claiming, key=lambda one: one.id != CAUSAL):
        for dtype in ("float32", "float64", "bfloat16", "float16"):
            if dtype not in subject.dtypes or (invariant.dtypes is not None and dtype not in invariant.dtypes):
                continue
            for block in fault.blocks:
                if block not in invariant.blocks or not fault.can_show(block, dtype, subject.name):
                    continue
                begin = time.perf_counter()
                cases = plan(spec, [subject], Choice((block,), (dtype,), (invariant.id,)))
                for results in run_cases(cases, KnownFailures()):
                    for result in results:
                        if result.verdict == "violated":
                            return result, time.perf_counter() - begin
    return None


def main(arguments: list[str]) -> int:
    """Print a line for each fault; return the exit status."""
    backend, chosen = (arguments or ["numpy"])[0], arguments[1:]
    spec = load_spec()
    able = set(find_subjects(backend)[0].faults)
    faults = [spec.one("faults", id) for id in chosen] or [one for one in spec.faults.values() if one.id in able]
    print(f"{'fault':34}{'invariant':36}{'block':11}{'B':>3}{'T':>4}{'heads':>6}  {'values':14}{'ex.':>4}{'s':>6}")
    large, counted = [], []
    for fault in faults:
        found = smallest(backend, fault, spec)
        if found is None:
            print(f"{fault.id:34}no invariant that claims it refutes it with this seed")
            large.append(fault.id)
            continue
        result, seconds = found
        assert result.counterexample is not None
        sizes = result.counterexample["sizes"]
        tokens, batch = sizes["T"], sizes["B"]
        counted.append((batch, tokens))
        print(
            f"{fault.id:34}{result.invariant[:34]:36}{result.block:11}{batch:>3}{tokens:>4}{sizes['n_heads']:>6}  "
            f"{result.counterexample['pattern']:14}{result.examples_to_fail:>4}{seconds:>6.1f}",
            flush=True,
        )
        if fault.id in spec.invariants[CAUSAL].refuted_by and (batch, tokens) != (1, 2):
            large.append(fault.id)
    least = sum(size == (1, 2) for size in counted)
    print(f"\n{least} of {len(counted)} at B = 1, T = 2; ", end="")
    causal = [fault.id for fault in faults if fault.id in spec.invariants[CAUSAL].refuted_by]
    print(f"causal faults larger than that: {', '.join(large) or 'none'} of {len(causal)}")
    return int(bool(large))


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
