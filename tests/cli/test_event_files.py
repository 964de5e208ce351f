"""Split files into documents: offsets, and large files piece by piece."""

import io
import json
from typing import Any

import pytest

from oncegate.cli import event_files
from oncegate.cli.event_files import documents

ITEMS: list[dict[str, Any]] = [
    {"n": number, "text": '}{ "[" \\', "list": [{"a": 1}, {"a": 2}], "object": {"x": {}}} for number in range(60)
]


@pytest.mark.parametrize("separator", ["", "\n", " \n\n "])
@pytest.mark.parametrize("most", [64, 1_000, 10**9])
def test_documents_in_a_row(separator: str, most: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Documents in a row are found with their offsets, whether the file is read as a whole or piece by piece."""
    monkeypatch.setattr(event_files, "_MOST_WHOLE", most)
    monkeypatch.setattr(event_files, "_CHUNK", 50)
    raw = separator.join(json.dumps(item, indent=1) for item in ITEMS).encode()
    found = list(documents(io.BytesIO(raw)))
    assert [json.loads(each.raw) for each in found] == ITEMS
    assert all(raw[each.offset :].startswith(each.raw) for each in found)
    assert [each.line for each in found] == [1 + raw.count(b"\n", 0, each.offset) for each in found]


@pytest.mark.parametrize("indent", [None, 2])
def test_a_large_array(indent: int | None, monkeypatch: pytest.MonkeyPatch) -> None:
    """The items of an array that is too large to be read as a whole are documents, with their offsets."""
    monkeypatch.setattr(event_files, "_MOST_WHOLE", 500)
    monkeypatch.setattr(event_files, "_CHUNK", 70)
    raw = f" {json.dumps(ITEMS, indent=indent)}\n".encode()
    found = list(documents(io.BytesIO(raw)))
    assert [json.loads(each.raw) for each in found] == ITEMS
    assert all(raw[each.offset :].startswith(each.raw) for each in found)


@pytest.mark.parametrize("most", [200, 10**9])
def test_one_large_document(most: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """A document that is not an array, such as an answer with many records, is read as a whole, whatever its size."""
    monkeypatch.setattr(event_files, "_MOST_WHOLE", most)
    raw = f"\n {json.dumps({'Records': ITEMS}, indent=1)}\n".encode()
    (found,) = documents(io.BytesIO(raw))
    assert json.loads(found.raw) == {"Records": ITEMS}
    assert found.offset == 2


def test_a_broken_document(monkeypatch: pytest.MonkeyPatch) -> None:
    """A broken document in a large file is one document; the documents after it are found."""
    monkeypatch.setattr(event_files, "_MOST_WHOLE", 64)
    texts = [json.dumps(item) for item in ITEMS]
    raw = "".join([*texts[:3], '{"broken": }', *texts[3:]]).encode()
    found = [each.raw.decode() for each in documents(io.BytesIO(raw))]
    assert found == [*texts[:3], '{"broken": }', *texts[3:]]


def test_offsets_of_lines() -> None:
    """The offset of a line is that of its first byte that is not blank."""
    raw = b'\n  {"a": 1}\n\n{"a": 2}\r\n\t{"a": 3}'
    assert [raw[each.offset :][:8] for each in documents(io.BytesIO(raw))] == [b'{"a": 1}', b'{"a": 2}', b'{"a": 3}']
