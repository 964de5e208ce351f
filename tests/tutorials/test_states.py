"""Logical duplicates: the program of a tutorial and the file that replaces it, on a Redis server."""

import json
import time
from typing import Any

import pytest

from oncegate import Gate, keys
from tests.stores.redis_server import RedisServer
from tests.tutorials.page import LOGICAL, event, failing_once, file_of, loaded, program_of


def change(number: str, state: str, at: str, **members: Any) -> Any:
    """An emission of a state, in the format of tutorials."""
    sample = event("tutorial Genesys", id=number)
    sample["detail"] = {"conversationId": "c-1", "status": state, "timestamp": f"2026-02-03T04:05:{at}Z", **members}
    return sample


def session(number: str) -> Any:
    """The end of one of the sessions of a conversation."""
    sample = event(id=number)
    sample["detail"]["eventBody"]["sessionId"] = f"session-{number}"
    return sample


# For what happens within the window: on a busy machine, 500 ms may pass between two calls.
LONG_WINDOW = program_of(LOGICAL).replace("px=500", "px=60_000")


@pytest.mark.usefixtures("redis")
class TestTheProgram:
    def effects(self, *events: Any) -> list[Any]:
        effects: list[Any] = []
        program = loaded(LONG_WINDOW, process=effects.append)
        for each in events:
            program["lambda_handler"](each, None)
        program["cache"].close()
        return effects

    def test_a_queue_that_is_drained(self) -> None:
        """The second `held` is lost although ten seconds are between the two."""
        drained = change("1", "held", "06.000"), change("2", "connected", "11.000"), change("3", "held", "16.000")
        assert len(self.effects(*drained)) == 2

    def test_an_emission_that_arrives_late(self) -> None:
        """An emission that arrives after the window runs again, although its time is within the window."""
        effects: list[Any] = []
        program = loaded(program_of(LOGICAL), process=effects.append)
        program["lambda_handler"](change("1", "held", "06.000"), None)
        time.sleep(0.6)
        program["lambda_handler"](change("2", "held", "06.100"), None)
        program["cache"].close()
        assert len(effects) == 2

    def test_two_sessions(self) -> None:
        """The ends of two sessions of one conversation have one key, so one is lost."""
        conversation = {"conversationId": "c-1", "status": "ended"}
        assert len(self.effects({"detail": conversation}, {"detail": conversation})) == 1

    def test_a_failure(self) -> None:
        """A retry within the window is a duplicate, and the event is lost."""
        effects: list[Any] = []
        program = loaded(LONG_WINDOW, process=failing_once(effects))
        with pytest.raises(ValueError, match="boom"):
            program["lambda_handler"](change("1", "held", "06.000"), None)
        assert program["lambda_handler"](change("1", "held", "06.000"), None)["body"] == "Duplicate"
        program["cache"].close()
        assert effects == []


class TestTheFile:
    @pytest.fixture(autouse=True)
    def file(self, redis: RedisServer, monkeypatch: pytest.MonkeyPatch) -> Any:
        monkeypatch.setenv("ONCEGATE_STORE", redis.url)
        self.names = loaded(file_of(LOGICAL))
        yield
        self.names["gate"].close()

    def bodies(self, *events: Any) -> list[dict[str, Any]]:
        return [json.loads(self.names["handler"](each, None)["body"]) for each in events]

    def test_emissions_of_one_change(self) -> None:
        """They have other ids and content, and arrive late. A later change to the same state is another event."""
        emissions = change("1", "held", "06.000"), change("2", "HELD", "06.300", agent="a-7")
        first, second = self.bodies(*emissions)
        assert [first["status"], second["status"], second["kind"]] == ["processed", "duplicate", "state-echo"]
        time.sleep(0.6)
        late = change("3", "held", "06.100"), change("4", "connected", "11.000"), change("5", "held", "16.000")
        assert [each["status"] for each in self.bodies(*late)] == ["duplicate", "processed", "processed"]

    def test_sessions_and_updates(self) -> None:
        """Two sessions that end in one millisecond are two events, and so are two updates of attributes."""
        updates = [event("attributes: the participant is the part") for _ in range(3)]
        updates[1]["detail"]["eventBody"]["attributes"] = {"vip": "no"}
        statuses = [each["status"] for each in self.bodies(session("1"), session("2"), *updates)]
        assert statuses == ["processed"] * 4 + ["duplicate"]


def test_the_last_state_only() -> None:
    """Two states at one time both run, in the order of their ranks; a copy is a duplicate, and an older state is
    skipped."""
    changes = ("connected", "06.000"), ("disconnected", "06.000"), ("disconnected", "06.200"), ("ringing", "05.000")
    column = Gate("memory://", key=keys.state_change("500ms"), on_stale="skip")
    outcomes = [column.run(change(str(number), *each), lambda event: None) for number, each in enumerate(changes)]
    assert [outcome.status for outcome in outcomes] == ["processed", "processed", "duplicate", "skipped"]
    assert column.run(change("5", "connected", "06.000"), lambda event: None).status == "skipped"
