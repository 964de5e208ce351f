"""The URL of a journal, and the settings that choose it."""

import threading
from contextlib import chdir, closing
from pathlib import Path

import pytest

from oncegate.errors import NoStore, SettingError
from oncegate.journal import check_journal, journal_url, open_journal, open_recorder
from oncegate.settings import load


@pytest.mark.parametrize(
    ("store", "expected"),
    [
        ("sqlite:///oncegate.db", "sqlite:///oncegate.journal.db"),
        ("sqlite:////var/lib/a%20b/x.sqlite3?synchronous=normal", "sqlite:////var/lib/a%20b/x.journal.db"),
        ("sqlite:///events", "sqlite:///events.journal.db"),
        ("sqlite:///v1.2", "sqlite:///v1.2.journal.db"),
        ("redis://localhost:6379/1?prefix=crm", "redis://localhost:6379/1?prefix=crm"),
        ("postgresql://db/x?oncegate_schema=crm", "postgresql://db/x?oncegate_schema=crm"),
        ("memory://", None),
        ("dynamodb://Table?region=eu-central-1", None),
    ],
)
def test_beside_the_store(store: str, expected: str | None) -> None:
    """With `auto`, the journal is beside the store; it never has the name of SQLite's own journal."""
    assert journal_url("auto", store) == expected
    assert journal_url(None, store) is None
    assert journal_url("sqlite:///mine.db", store) == "sqlite:///mine.db"


@pytest.mark.parametrize(
    ("url", "message"),
    [
        ("http://x", "unknown journal scheme 'http'; use auto, off, or a URL with one of: sqlite"),
        ("nonsense", "is not a journal URL"),
        ("sqlite://", "names no file"),
        ("redis://", "has no host"),
        ("memory://", "unknown journal scheme 'memory'"),
    ],
)
def test_invalid_urls(url: str, message: str) -> None:
    """An invalid URL is an error that says what to write."""
    with pytest.raises(SettingError, match=message):
        check_journal(url)
    with pytest.raises(SettingError, match=message):
        open_recorder(url)


def test_too_small() -> None:
    """A journal smaller than 10 MiB is refused: counters alone could fill it."""
    with pytest.raises(SettingError, match="journal_max_size=1000 is too small"):
        open_recorder("sqlite:///x.db", max_size=1_000)


def threads() -> set[threading.Thread]:
    return {thread for thread in threading.enumerate() if thread.name == "oncegate-journal"}


class TestSettings:
    @pytest.fixture(autouse=True)
    def _folder(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.chdir(tmp_path)

    def test_off_in_a_program(self, tmp_path: Path) -> None:
        """By default a gate in a program writes no journal; a command does."""
        settings = load(environ={})
        with closing(settings.gate()) as gate:
            gate.run({"id": "evt-1"}, lambda event: None)
        assert not list(tmp_path.glob("*journal*"))
        assert settings.recorder() is not None
        assert settings.recorder(automatic=False) is None

    def test_asked_for_in_a_program(self, tmp_path: Path) -> None:
        """With a URL in the settings, a gate in a program writes a journal until it is closed. The program may change
        its folder meanwhile. No thread is left."""
        settings, others = (
            load(environ={"ONCEGATE_JOURNAL": "sqlite:///mine.db", "ONCEGATE_NAMESPACE": "crm"}),
            threads(),
        )
        with closing(settings.gate()) as gate:
            (tmp_path / "elsewhere").mkdir()
            with chdir(tmp_path / "elsewhere"):
                gate.run({"id": "evt-1"}, lambda event: None)
        for thread in threads() - others:
            thread.join(10)
            assert not thread.is_alive()
        assert not list((tmp_path / "elsewhere").iterdir())
        with closing(open_journal("sqlite:///mine.db", create=False)) as journal:
            (row,) = journal.rows()
        assert (row.event_id, row.place) == ("evt-1", "crm")

    def test_reading(self) -> None:
        """A command opens the journal that the settings name, for reading. Without a journal the error says why."""
        settings = load(environ={})
        with pytest.raises(NoStore, match=r"there is no journal at oncegate\.journal\.db"):
            settings.open_journal()
        recorder = settings.recorder()
        assert recorder is not None
        recorder.start()
        assert recorder.close(10)
        with closing(settings.open_journal()) as journal:
            assert journal.rows() == []
        with pytest.raises(SettingError, match="because it is off; remove this setting, or set it to auto"):
            load(environ={"ONCEGATE_JOURNAL": "off"}).open_journal()
        with pytest.raises(SettingError, match="because it is off; set journal to a URL"):
            load(environ={"ONCEGATE_JOURNAL": "off", "ONCEGATE_STORE": "dynamodb://Table"}).open_journal()
        with pytest.raises(SettingError, match="because memory:// has no place for one; set journal to a URL"):
            load(environ={"ONCEGATE_STORE": "memory://"}).open_journal()

    def test_switched_off(self) -> None:
        """`off` switches the journal off everywhere, and a store without a place for a journal has none."""
        assert load(environ={"ONCEGATE_JOURNAL": "off"}).recorder() is None
        assert load(environ={"ONCEGATE_STORE": "memory://"}).recorder() is None

    def test_bounds(self) -> None:
        """The settings bound the journal."""
        environ = {
            "ONCEGATE_JOURNAL_MAX_AGE": "2d",
            "ONCEGATE_JOURNAL_MAX_SIZE": "20000000",
            "ONCEGATE_JOURNAL_PAYLOADS": "1h",
        }
        recorder = load(environ=environ).recorder()
        assert recorder is not None
        assert recorder._bounds.max_age == 2 * 86_400_000_000
        assert (recorder._bounds.max_size, recorder._bounds.payload_age) == (20_000_000, 3_600_000_000)

    @pytest.mark.parametrize(
        ("variable", "value", "message"),
        [
            (
                "ONCEGATE_JOURNAL",
                "yes",
                "journal='yes' must be auto, or a URL such as sqlite:///oncegate.journal.db, or off",
            ),
            ("ONCEGATE_JOURNAL", "ftp://user:secret@x", "unknown journal scheme 'ftp'"),
            ("ONCEGATE_JOURNAL_PAYLOADS", "on", "journal_payloads='on' is not a duration"),
            ("ONCEGATE_JOURNAL_MAX_AGE", "off", "journal_max_age='off' is not a duration"),
        ],
    )
    def test_invalid_values(self, variable: str, value: str, message: str) -> None:
        """An invalid value is refused, and a password is not shown."""
        with pytest.raises(SettingError, match=message) as caught:
            load(environ={variable: value})
        assert "secret" not in str(caught.value)
