"""Read a recording in batches, in this process and in several processes."""

from pathlib import Path

from oncegate.analysis.recording import ITEMS, DocumentBatch, RowOptions, write_rows
from oncegate.simulate.copies import CopyOptions
from oncegate.simulate.traffic import Plan, deliveries

PLAN = Plan(events=150, seed=4, copy_options=CopyOptions(invalid=0.2))


def batches() -> list[DocumentBatch]:
    raw = [(each.number, each.copy.raw) for each in deliveries(PLAN)]
    return [DocumentBatch(0, start, raw[start : start + 40], 7) for start in range(0, len(raw), 40)]


def rows_in(folder: Path) -> list[str]:
    return sorted(line for file in folder.glob("rows-*.csv") for line in file.read_text().splitlines())


def test_processes(tmp_path: Path) -> None:
    """Several processes write the same rows and count the same as one process. Each batch reports its progress."""
    (alone := tmp_path / "alone").mkdir()
    (together := tmp_path / "together").mkdir()
    progress: list[int] = []
    one = write_rows(batches(), RowOptions(), alone, size=0, on_batch=progress.append)
    several = write_rows(batches(), RowOptions(), together, size=10**9, workers=2, on_batch=progress.append)
    assert rows_in(alone) == rows_in(together)
    assert len(rows_in(alone)) == one.deliveries > 200
    assert (one.documents, one.deliveries, one.unreadable) == (
        several.documents,
        several.deliveries,
        several.unreadable,
    )
    assert one.kinds == several.kinds
    assert one.unreadable == len(one.shown) > 10
    assert progress == [7] * 2 * len(batches())


def test_positions(tmp_path: Path) -> None:
    """A position is unique in the recording and in the order of the documents, also for documents with many events."""
    batch = DocumentBatch(3, 5, [(0, b'[{"id": 1}, {"id": 2}]'), (30, b'{"id": 3}')])
    write_rows([batch], RowOptions(), tmp_path, size=0)
    found = [line.split(",")[:5] for line in rows_in(tmp_path)]
    expected = [(5 * ITEMS, 3, 0, 22, 0), (5 * ITEMS + 1, 3, 0, 22, 1), (6 * ITEMS, 3, 30, 9, 0)]
    assert found == [list(map(str, each)) for each in expected]


def test_frames(tmp_path: Path) -> None:
    """Messages of a transport, such as heartbeats, are counted, and are no deliveries."""
    batch = DocumentBatch(
        0, 0, [(0, b'{"topicName": "channel.metadata", "eventBody": {"message": "WebSocket Heartbeat"}}')]
    )
    found = write_rows([batch], RowOptions(), tmp_path, size=0)
    assert (found.frames, found.deliveries, found.unreadable) == (1, 0, 0)
