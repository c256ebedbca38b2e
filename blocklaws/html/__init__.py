"""Reports as one HTML file: what `verify --html`, `faults --html` and `trace --html` write.

Must hold: a page is made of nothing but the data that ``--json`` writes too, so that a stored report can become one
later; it needs no network, no other file and no script to be read. Must not: be imported before a page is asked for,
since the templates need Jinja2.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from blocklaws.html.failures import leads, shown_failures
from blocklaws.html.kills import kill_view
from blocklaws.html.rendering import render
from blocklaws.html.traces import trace_views
from blocklaws.html.verdicts import verdict_view
from blocklaws.report import Report
from blocklaws.report_restoring import report_from
from blocklaws.terminal import STATUS

__all__ = ["faults_page", "report_from", "trace_page", "verify_page"]


def verify_page(report: Report) -> str:
    """Return the page of a report; `report_from` makes a report of what ``--json`` wrote."""
    return render(
        "verify.html.j2",
        report=report,
        status=report.exit_status,
        told=STATUS[report.exit_status],
        leads=leads(report),
        failures=shown_failures(report),
        verdicts=verdict_view(report),
    )


def faults_page(matrix: Mapping[str, Any]) -> str:
    """Return the page of a kill matrix, given what ``faults --json`` writes."""
    return render("faults.html.j2", matrix=matrix, view=kill_view(matrix))


def trace_page(traces: Sequence[Mapping[str, Any]]) -> str:
    """Return the page of some traces, each as ``trace --json`` prints it."""
    return render("trace.html.j2", views=trace_views(traces))
