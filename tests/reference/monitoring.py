"""Blocks about monitoring: metrics, notices, and the fields of the log."""

import inspect
import re
from typing import Any

from prometheus_client.metrics import MetricWrapperBase

from oncegate import Outcome, read
from oncegate.gate import Notice, observers
from oncegate.journal import open_recorder
from oncegate.service.monitoring import Metrics
from tests.reference.markdown import Rows, code, table


def metrics(_argument: str, rows: Rows) -> str:
    """The metrics of the service. The last column is written by hand; without a text it is the help of the metric."""
    cells = []
    for family, labels in _families():
        name = f"{family.name}_total" if family.type == "counter" else family.name
        unit = next((unit for unit in ("seconds", "bytes") if family.name.endswith(f"_{unit}")), "count")
        labelled = ", ".join(code(label) for label in labels)
        cells.append((code(name), family.type, labelled, unit, rows.text_of(code(name), family.documentation)))
    return table(("metric", "type", "labels", "unit", "meaning"), sorted(cells))


def _families() -> list[tuple[Any, tuple[str, ...]]]:
    """Each metric with the names of its labels. prometheus_client shows labels only on samples, and a metric that has
    counted nothing has no samples. So the labels are read from the collector, or from the metric that it returns."""
    found: list[tuple[Any, tuple[str, ...]]] = []
    metrics = Metrics()
    metrics.journal(open_recorder("sqlite:///never-opened.db"))
    for collector in metrics._registry._collector_to_names:
        for family in collector.collect():
            holder: Any = collector if isinstance(collector, MetricWrapperBase) else family
            found.append((family, tuple(holder._labelnames)))
    return found


def notices(_argument: str, _rows: Rows) -> str:
    """The notices, as the docstring of `oncegate.gate.observers` describes them."""
    found: list[list[str]] = []
    for line in (inspect.getdoc(observers) or "").splitlines():
        if begun := re.fullmatch(r" {4}([a-z]+\.[A-Za-z_]+) +(.+)", line):
            found.append([code(begun[1]), begun[2]])
        elif line.startswith(" " * 8):
            found[-1][1] += f" {line.strip()}"
    return table(("notice", "meaning"), found)


def log_fields(_argument: str, rows: Rows) -> str:
    """The fields of a line of the log. The last column is written by hand."""
    (event,) = read({"id": "evt-1"})
    outcome = ["time", *observers.fields_of(Outcome("processed", event), "default")]
    warning = ["time", *observers._warning_fields(Notice("transaction.held", 0, "default", event), event)]
    names = [*outcome, *(name for name in warning if name not in outcome)]
    cells = [
        (code(name), "yes" if name in outcome else "", "yes" if name in warning else "", rows.text_of(code(name)))
        for name in names
    ]
    return table(("field", "outcome", "warning", "meaning"), cells)
