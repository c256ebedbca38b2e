"""The invariants of a spec as pytest tests: one a case of the backends that are named on the command line.

``pytest properties --backend numpy`` in a checkout; ``pytest --pyargs blocklaws.properties --blocklaws-backend numpy``
anywhere. The plugin (``blocklaws.pytest_plugin``) gives the cases.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from blocklaws.pytest_cases import PytestCase


@pytest.mark.blocklaws_invariants
def test_invariant(case: PytestCase) -> None:
    """Fails when the backend violates the invariant; skipped, with the reason, where it cannot be checked."""
    case.check()
