"""Tests of the analysis of recorded traffic. `analyzed` analyzes a recording that is held in memory."""

from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

import msgspec

from oncegate.analysis.analysis import Analysis, AnalysisOptions, analyze
from oncegate.analysis.recording import DocumentBatch


def batch_of(documents: Iterable[bytes | dict[str, Any]]) -> DocumentBatch:
    """One batch of documents; the offsets are those of a file with one document per line."""
    found, offset = [], 0
    for document in documents:
        raw = document if isinstance(document, bytes) else msgspec.json.encode(document)
        found.append((offset, raw))
        offset += len(raw) + 1
    return DocumentBatch(0, 0, found)


def analyzed(
    documents: Sequence[bytes | dict[str, Any]], folder: Path, *, export: Path | None = None, **options: Any
) -> Analysis:
    folder.mkdir(exist_ok=True)
    batch = batch_of(documents)
    return analyze([batch], [batch], folder, AnalysisOptions(**options), size=0, export=export)
