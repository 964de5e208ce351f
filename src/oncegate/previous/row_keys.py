"""Make the keys of a gate from the rows of an old place.

The key strategy of the gate is called with an event that has only the columns of the row. Strategies that use the
content of the event, or its state changes, cannot make a key from a row."""

from collections.abc import Collection, Mapping, Sequence
from typing import Any, Final

from msgspec import Struct

from oncegate import keys
from oncegate.claims import EventSummary
from oncegate.errors import MissingKey
from oncegate.events import Event, Key
from oncegate.previous.base import KeyPart, OldRow
from oncegate.previous.templates import ValueType, typed
from oncegate.sources.fields import Path, path
from oncegate.times import microseconds_of, moment

CONTENT: Final = "the content of the event"
_STATE_CHANGE: Final = "the timeline of state changes"
# Sources whose default key is made from more than an id.
_WITH_IDENTITY: Final = ("genesys", "cxone", "cloudevents", "eventbridge")
KNOWN_SOURCES: Final = (*_WITH_IDENTITY, "plain")
_BY_PATHS: Final = ("fields", "once_per", "event_id", "first")
_WEBHOOK_ID: Final = "webhook_id"
_CLOUDEVENTS: Final = "cloudevents"
# Columns that describe the event for people, by usual names.
_ID_NAMES: Final = ("id", "eventId", "event_id", "messageId", "message_id")
_TYPE_NAMES: Final = ("type", "eventType", "event_type", "detailType", "topicName")
_ENTITY_NAMES: Final = ("conversationId", "conversation_id", "interactionId", "contactId", "entity")
_TIME_NAMES: Final = ("eventTime", "event_time", "timestamp", "time", "occurredAt", "occurred_at")
_LONGEST_TEXT: Final = 256


class MappedColumn(Struct, frozen=True):
    """The column in which a path of the key is stored, and the type of its value in the key."""

    column: str
    type: ValueType = ""


class RowKeys:
    """Makes keys from rows. `templates` read further columns from the text of a column. `mapped` has the columns of
    paths whose names differ."""

    def __init__(
        self,
        strategy: keys.Strategy,
        source: str,
        templates: Sequence[KeyPart] = (),
        mapped: Mapping[str, MappedColumn] | None = None,
    ) -> None:
        self._strategy = strategy
        self._source = source
        self._templates = templates
        self._mapped = dict(mapped or {})
        self.paths, self.never = _needs(strategy, source)

    def missing(self, rows: Sequence[OldRow]) -> list[str]:
        """Return the parts of the key that none of these rows has."""
        if self.never is not None:
            return [self.never]
        columns = self.columns(rows)
        return [each for each in self.paths if self._column(each, columns) is None]

    def columns(self, rows: Sequence[OldRow]) -> list[str]:
        """Return the names of all columns of these rows, with the columns that the templates read."""
        return list(dict.fromkeys(name for row in rows for name in self._expanded(row)[0]))

    def key(self, row: OldRow) -> tuple[Key, EventSummary]:
        """Return the key of a row, and the summary of its event. Raises ValueError if the row has no key."""
        if not self._source:
            raise ValueError("the source of its event is not known; add --source")
        if self.never is not None:
            raise ValueError(f"the row lacks {self.never}, which the key needs")
        columns, problem = self._expanded(row)
        if problem is not None:
            raise ValueError(problem)
        if absent := [each for each in self.paths if self._value(each, columns) is None]:
            raise ValueError(f"the row has no {', '.join(absent)}")
        event = self._event(columns)
        try:
            key = self._strategy(event)
        except MissingKey as error:
            raise ValueError(f"the row has no {', '.join(error.tried)}") from error
        except Exception as error:
            raise ValueError(f"its key function raised {type(error).__name__}: {error}") from error
        return key, _summary(self._source, columns)

    def _expanded(self, row: OldRow) -> tuple[dict[str, Any], str | None]:
        """Return the columns with those that the templates read, and why a template does not fit."""
        columns = dict(row.columns)
        for part in self._templates:
            text = columns.get(part.column)
            found = part.template.read(text) if isinstance(text, str) else None
            if found is None:
                return columns, f"its {part.column} does not have the form {part.template.text}"
            columns |= found
        return columns, None

    def _event(self, columns: Mapping[str, Any]) -> Event:
        values = {each: self._value(each, columns) for each in (*self.paths, *self._mapped)}
        body: dict[str, Any] = dict(columns)
        for each, value in values.items():
            if value is not None:
                _put(body, path(each), value)
        event_id = typed(values.get("id"), "text")
        own_id = (values.get("source"), values.get("id")) if self._source == _CLOUDEVENTS else ()
        return Event(
            source=self._source,
            body=body,
            id=None if event_id is None else str(event_id),
            own_id=own_id if all(own_id) else (),
            webhook_id=values.get(_WEBHOOK_ID),
        )

    def _value(self, dotted: str, columns: Mapping[str, Any]) -> Any:
        column = self._column(dotted, columns)
        if column is None:
            return None
        return typed(columns.get(column), self._mapped[dotted].type if dotted in self._mapped else "")

    def _column(self, dotted: str, columns: Collection[str]) -> str | None:
        """Return the column of a path: the mapped column, the column with the name of the path, or the column with the
        name of its last member if no other path ends with this member."""
        if dotted in self._mapped:
            name = self._mapped[dotted].column
            return name if name in columns else None
        if dotted in columns:
            return dotted
        last = path(dotted)[-1]
        is_unambiguous = sum(path(each)[-1] == last for each in self.paths) == 1
        return last if is_unambiguous and last in columns else None


def _needs(strategy: keys.Strategy, source: str) -> tuple[tuple[str, ...], str | None]:
    """Return the paths that the strategy needs, and what it needs that no row has. A strategy is asked with an empty
    event: the error names the paths. The paths of a user's function are not known."""
    if strategy is keys.auto:
        return ((), CONTENT) if source in _WITH_IDENTITY else (("id",), None)
    try:
        key = strategy(Event(source=source, body={}))
    except MissingKey as error:
        if error.strategy == "state_change":
            return (), _STATE_CHANGE
        if error.strategy == "webhook_id":
            return (_WEBHOOK_ID,), None
        if error.strategy == "event_id" and source == _CLOUDEVENTS:
            return ("source", "id"), None
        return (error.tried if error.strategy in _BY_PATHS else ()), None
    except Exception:  # noqa: BLE001  # a user's key function may raise anything
        return (), None
    return (), CONTENT if key.strategy == "content" else None


def _put(body: dict[str, Any], steps: Path, value: Any) -> None:
    for step in steps[:-1]:
        inner = body.get(step)
        if not isinstance(inner, dict):
            inner = body[step] = {}
        body = inner
    body[steps[-1]] = value


def _summary(source: str, columns: Mapping[str, Any]) -> EventSummary:
    when = next((found for name in _TIME_NAMES if (found := moment(columns.get(name))) is not None), None)
    return EventSummary(
        source,
        _first(columns, _TYPE_NAMES),
        _first(columns, _ENTITY_NAMES),
        None if when is None else microseconds_of(when),
        _first(columns, _ID_NAMES),
    )


def _first(columns: Mapping[str, Any], names: Sequence[str]) -> str | None:
    values = (typed(columns.get(name), "text") for name in names)
    return next((str(value)[:_LONGEST_TEXT] for value in values if value is not None), None)
