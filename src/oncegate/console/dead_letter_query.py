"""Which dead letters a page shows or an action changes, as the parameters of an address or a form."""

from collections.abc import Callable, Iterator, Mapping

from msgspec import Struct

from oncegate.canonical import HASH_SIZE
from oncegate.claims import DEAD
from oncegate.durations import microseconds
from oncegate.errors import SettingError
from oncegate.inspection.dead_letter_groups import group_id, normal_error
from oncegate.inspection.operators import all_dead_letters, filter_text
from oncegate.inspection.record_filter import RecordFilter, time_of_dead_letters
from oncegate.settings import Settings
from oncegate.stores.base import Entry, Store

_NAMES = ("namespace", "type", "error", "older", "newer", "group", "key")


class DeadLetterQuery(Struct, frozen=True):
    """`parameters` are the parameters that are not empty. `problem` says which parameter is invalid. `group` is the id
    of a group of errors. With `key`, only the dead letter of this key is selected. `until` excludes dead letters that
    are newer than this time in microseconds: they appeared after the person had confirmed."""

    parameters: Mapping[str, str]
    chosen: RecordFilter
    namespace: str | None = None
    group: str | None = None
    key: bytes | None = None
    until: int | None = None
    problem: str | None = None

    @property
    def is_filtered(self) -> bool:
        return bool(self.parameters)

    @property
    def time_of(self) -> Callable[[Entry], int]:
        return self.chosen.time_of

    def read(self, store: Store) -> Iterator[Entry]:
        """Yields the dead letters that may match: all of the namespace, or that of the key."""
        if self.key is None:
            yield from all_dead_letters(store, self.namespace)
        else:
            yield from (each for each in store.browse(self.namespace, key=self.key) if each.record.state == DEAD)

    def matches(self, entry: Entry) -> bool:
        return (
            self.chosen.matches(entry)
            and (self.group is None or group_id(entry) == self.group)
            and (self.until is None or self.time_of(entry) <= self.until)
        )

    def text(self, example: Entry | None) -> str:
        """What is selected, for the record of an action. `example` is one of the selected dead letters."""
        parts = [filter_text(self.chosen, self.namespace)]
        if self.group is not None and example is not None:
            parts.append(f"error like {normal_error(example)}")
        return ", ".join(parts).removeprefix("all, ")


def dead_letter_query(settings: Settings, given: Mapping[str, str]) -> DeadLetterQuery:
    """Read the parameters of an address or a form. An invalid parameter selects nothing: see `problem`."""
    parameters = {name: given[name] for name in _NAMES if given.get(name)}
    namespace, time_of = parameters.get("namespace"), time_of_dead_letters(settings)
    try:
        chosen = RecordFilter(
            time_of,
            type=parameters.get("type"),
            error=parameters.get("error"),
            older_than=_age(parameters, "older"),
            newer_than=_age(parameters, "newer"),
        )
        key, until = _key(parameters.get("key")), given.get("until")
        return DeadLetterQuery(
            parameters, chosen, namespace, parameters.get("group"), key, int(until) if until else None
        )
    except (SettingError, ValueError) as error:
        return DeadLetterQuery(parameters, RecordFilter(time_of), namespace, problem=f"Invalid filter: {error}")


def _age(parameters: Mapping[str, str], name: str) -> int | None:
    return None if name not in parameters else microseconds(parameters[name], f"{name} than")


def _key(written: str | None) -> bytes | None:
    key = None if written is None else bytes.fromhex(written)
    if key is not None and len(key) != HASH_SIZE:
        raise ValueError("a key has 32 hexadecimal digits")
    return key
