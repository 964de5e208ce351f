"""A route: signatures, namespaces, limits, and the cache of parsed bodies."""

import asyncio
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import msgspec
import pytest

from oncegate import Event, Gate, read
from oncegate.claims import Reset
from oncegate.clocks import wall
from oncegate.errors import SettingError
from oncegate.service import route as route_module
from oncegate.service.admission import InFlightBudget, InlineAdmission
from oncegate.service.app import App
from oncegate.service.monitoring import Metrics
from oncegate.service.route import Limits, LiveKeys, Rate, Route
from oncegate.service.service import Service
from oncegate.settings import load
from oncegate.signatures import verifier_of
from oncegate.stores.memory import MemoryStore
from oncegate.testing import ManualClock
from tests.service.apps import CountingStore, app_of, post, posted, signed
from tests.signatures.sending import SENDERS, whsec

ROUTES = """
store = "memory://"
log = "off"

[serve]
mode = "inline"

[route.crm]
signature = "standard-webhooks"
secret_env = ["CRM_NOW", "CRM_NEXT"]

[route.billing]
signature = "standard-webhooks"
secret_env = "BILLING"
max_rate = 5

[route.open]
signature = "none"
key = 'once_per("survey", "conversation")'
on_missing_key = "unguarded"

[route.open.read]
id = "meta.id"
"""


# Headers that a proxy or an attacker can add to a request that it cannot sign.
UNSIGNED = [
    {"ce-specversion": "1.0", "ce-id": "other", "ce-source": "s", "ce-type": "t"},
    {"content-type": "application/cloudevents+json"},
    {"webhook-id": "msg_2", "idempotency-key": "k-2", "x-request-id": "r-2"},
    {"replay-name": "backfill", "x-amz-sns-message-type": "Notification", "x-amz-sns-message-id": "m-2"},
]


@pytest.fixture
def effects() -> list[tuple[str, str | None]]:
    return []


@pytest.fixture
def service(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, effects: list[tuple[str, str | None]]
) -> Iterator[Service]:
    """A service with three routes, whose handlers note what they ran."""
    for number, name in enumerate(("CRM_NOW", "CRM_NEXT", "BILLING")):
        monkeypatch.setenv(name, whsec(number))
    (tmp_path / "oncegate.toml").write_text(ROUTES)
    settings = load(tmp_path / "oncegate.toml", environ={})

    def noting(route: str) -> Callable[[Event], None]:
        return lambda event: effects.append((route, event.id))

    handlers = {f"/events/{name}": noting(name) for name in ("crm", "billing", "open")}
    service = Service(settings, handlers, [])
    yield service
    service.close()


BY_WEBHOOK_ID = """
store = "memory://"
log = "off"
key = "{key}"
[serve]
mode = "inline"
[route.crm]
signature = "{signature}"
secret_env = "CRM_NOW"
"""


class TestSignatures:
    @pytest.mark.parametrize("name", [name for name in SENDERS if not name.startswith("hmac")])
    def test_unsigned_requests_never_reach_the_store(self, name: str) -> None:
        """An unsigned request gets 401 before it is parsed, and the store is not called."""
        sender, body = SENDERS[name], b'{"id": "evt-1"}'
        gate = Gate(CountingStore())
        app = app_of(gate, verifier=verifier_of(name, {"a": sender.secret(1)}))
        before = CountingStore.calls
        stamp = str(int(time.time()))
        forged = sender.headers(sender.secret(2), body, stamp)
        answers = posted(app, [("/events", body, {}), ("/events", body, forged), ("/events", b"\xff{", forged)])
        assert [answer.status_code for answer in answers] == [401, 401, 401]
        assert {answer.headers["content-type"] for answer in answers} == {"application/problem+json"}
        assert CountingStore.calls == before
        assert post(app, "/events", body, sender.headers(sender.secret(1), body, stamp)).status_code == 200
        assert CountingStore.calls > before
        gate.close()

    def test_signature_covers_the_body(self, service: Service, effects: list[Any]) -> None:
        """A body that differs in one byte, even white space, gets 401."""
        body = b'{"id": "evt-1"}'
        headers = signed(whsec(0), body)
        assert post(service.app, "/events/crm", body + b" ", headers).status_code == 401
        assert post(service.app, "/events/crm", body, headers).status_code == 200
        assert effects == [("crm", "evt-1")]

    def test_two_secrets(self, service: Service) -> None:
        """Two secrets are valid at a time, for rotation; the secret of another route is not."""
        body = b'{"id": "evt-1"}'
        codes = [post(service.app, "/events/crm", body, signed(whsec(n), body)).status_code for n in range(3)]
        assert codes == [200, 200, 401]

    @pytest.mark.parametrize(("off", "code"), [(-400, 401), (400, 401), (-200, 200), (200, 200)])
    def test_timestamp_tolerance(self, service: Service, off: int, code: int) -> None:
        """A signature that is more than five minutes old, or ahead, gets 401, so that a recorded request soon
        expires."""
        body = b'{"id": "evt-1"}'
        headers = signed(whsec(0), body, time.time() + off)
        assert post(service.app, "/events/crm", body, headers).status_code == code

    def test_dot_in_the_id(self, service: Service) -> None:
        """An id with a dot is ambiguous and gets 400."""
        body = b'{"id": "evt-1"}'
        assert post(service.app, "/events/crm", body, signed(whsec(0), body, message="a.b")).status_code == 400

    def test_unsigned_cloudevent_headers(self, service: Service, effects: list[Any]) -> None:
        """CloudEvent headers count only on unsigned routes: another header must not turn a duplicate into a new
        event."""
        body = b'{"id": "evt-1"}'
        spread = {"ce-specversion": "1.0", "ce-id": "other", "ce-source": "s", "ce-type": "t"}
        headers = signed(whsec(0), body)
        answers = posted(service.app, [("/events/crm", body, headers), ("/events/crm", body, {**headers, **spread})])
        assert [answer.json()["status"] for answer in answers] == ["processed", "duplicate"]
        assert post(service.app, "/events/open", b'{"conversation": 1}', spread).json()["event_id"] == "other"

    @pytest.mark.parametrize("name", [name for name in SENDERS if not name.startswith("hmac")])
    def test_unsigned_headers_do_not_describe_the_event(self, name: str) -> None:
        """On a signed route no unsigned header changes the key, the source or the kind of a duplicate."""
        sender, body, stamp = SENDERS[name], b'{"id": "evt-1"}', str(int(time.time()))
        gate = Gate(MemoryStore())
        app = app_of(gate, verifier=verifier_of(name, {"a": sender.secret(1)}))
        headers = sender.headers(sender.secret(1), body, stamp)
        first, again, *others = posted(
            app,
            [("/events", body, headers) for _ in "12"] + [("/events", body, {**each, **headers}) for each in UNSIGNED],
        )
        assert first.json()["status"] == "processed"
        assert (again.json()["status"], again.json()["kind"]) == ("duplicate", "redelivery")
        found = {tuple(answer.json()[each] for each in ("status", "kind", "key", "event_id")) for answer in others}
        assert found == {("duplicate", "redelivery", first.json()["key"], "evt-1")}
        assert [entry.record.about.source for entry in gate.store.browse()] == ["plain"]

    def test_secrets_do_not_leak(self, service: Service, caplog: pytest.LogCaptureFixture) -> None:
        """No response, log line or repr contains a secret or the expected signature."""
        body = b'{"id": "evt-1"}'
        right = signed(whsec(0), body)["webhook-signature"]
        answer = post(service.app, "/events/crm", body, {**signed(whsec(2), body)})
        visible = answer.text + caplog.text + repr(service.__dict__) + repr([vars(d) for d in service._routes.values()])
        assert answer.status_code == 401
        assert "rejected a request" in caplog.text
        assert not [secret for secret in (whsec(0), whsec(1), whsec(0)[6:], right) if secret in visible]


class TestNamespaces:
    def test_one_id_on_two_routes(self, service: Service, effects: list[Any]) -> None:
        """The namespace is the route's, whatever the body says: no sender can suppress events of another."""
        body = b'{"id": "evt-1", "namespace": "billing", "route": "billing", "source": "billing"}'
        first = post(service.app, "/events/crm", body, signed(whsec(0), body))
        other = post(service.app, "/events/billing", body, signed(whsec(2), body))
        assert [first.json()["status"], other.json()["status"]] == ["processed", "processed"]
        assert effects == [("crm", "evt-1"), ("billing", "evt-1")]

    def test_settings_of_the_route(self, service: Service, effects: list[Any]) -> None:
        """A route has its own key, hints and policies."""
        bodies = [b'{"meta": {"id": 1}, "conversation": 7}', b'{"meta": {"id": 2}, "conversation": 7}', b'{"n": 1}']
        answers = [post(service.app, "/events/open", body).json()["status"] for body in bodies]
        assert answers == ["processed", "duplicate", "unguarded"]
        assert effects == [("open", "1"), ("open", None)]

    def test_unknown_paths(self, service: Service) -> None:
        """If routes are configured, only these are served; a 404 does not name them."""
        for path in ("/events", "/events/", "/events/none", "/events/crm/", "/events/crm/x", "/events/CRM"):
            answer = post(service.app, path, b'{"id": 1}')
            assert (answer.status_code, "crm" in answer.text) == (404, False)
            assert answer.json()["detail"].endswith("send events to /events/ROUTE")

    def test_same_key_other_content(self, service: Service) -> None:
        """Different content under a known key is a conflict, never a duplicate."""
        bodies = [b'{"id": "evt-1", "n": 1}', b'{"id": "evt-1", "n": 2}']
        answers = [post(service.app, "/events/crm", body, signed(whsec(0), body)) for body in bodies]
        assert [answer.json()["status"] for answer in answers] == ["processed", "conflict"]


class TestWebhookIds:
    @pytest.fixture
    def app(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, effects: list[tuple[str, str | None]]
    ) -> Iterator[App]:
        monkeypatch.setenv("CRM_NOW", whsec(0))
        (tmp_path / "oncegate.toml").write_text(BY_WEBHOOK_ID.format(key="webhook_id", signature="standard-webhooks"))
        settings = load(tmp_path / "oncegate.toml", environ={})
        service = Service(settings, {"/events/crm": lambda event: effects.append(("crm", event.webhook_id))}, [])
        yield service.app
        service.close()

    def test_message_runs_once(self, app: App, effects: list[Any]) -> None:
        """A retry under the same id, with a new signature, is a duplicate; the same body under another id is another
        event."""
        body = b'{"invoice": "paid"}'
        sent = [
            signed(whsec(0), body),
            signed(whsec(0), body, time.time() + 5),
            signed(whsec(0), body, message="msg_2"),
        ]
        answers = posted(app, [("/events/crm", body, headers) for headers in [*sent, sent[1]]])
        assert [answer.json()["status"] for answer in answers] == ["processed", "duplicate", "processed", "duplicate"]
        assert effects == [("crm", "msg_1"), ("crm", "msg_2")]

    def test_other_content(self, app: App) -> None:
        """The same id with another body is a conflict, not a duplicate."""
        bodies = b'{"invoice": 1}', b'{"invoice": 2}'
        answers = posted(app, [("/events/crm", body, signed(whsec(0), body)) for body in bodies])
        assert [answer.json()["status"] for answer in answers] == ["processed", "conflict"]

    def test_several_events_in_one_message(self, app: App, effects: list[Any]) -> None:
        """Each event of a message has its own id, and is a duplicate when the message is sent again."""
        body = b'[{"invoice": "paid"}, {"invoice": "paid"}]'
        answers = posted(app, [("/events/crm", body, signed(whsec(0), body)) for _ in "12"])
        assert [[each["status"] for each in answer.json()["outcomes"]] for answer in answers] == [
            ["processed"] * 2,
            ["duplicate"] * 2,
        ]
        assert effects == [("crm", "msg_1.0"), ("crm", "msg_1.1")]

    @pytest.mark.parametrize("key", ["webhook_id", "keys.webhook_id", "first(event_id, webhook_id)"])
    @pytest.mark.parametrize("signature", ["cxone", "genesys-open-messaging", "bearer", "none"])
    def test_rejected_without_signed_header(
        self, key: str, signature: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """The service does not start if a route uses the key webhook_id and its signature does not cover that
        header."""
        monkeypatch.setenv("CRM_NOW", "a secret of many bytes")
        (tmp_path / "oncegate.toml").write_text(BY_WEBHOOK_ID.format(key=key, signature=signature))
        with pytest.raises(SettingError, match=r"needs signature=standard-webhooks; .* choose another key"):
            Service(load(tmp_path / "oncegate.toml", environ={}), {"/events/crm": print}, [])


class TestLimits:
    def test_rate(self, service: Service) -> None:
        """A route above its rate gets 429 with Retry-After; other routes are not affected."""
        requests: list[tuple[str, bytes, dict[str, str]]] = []
        for number in range(8):
            body = b'{"id": %d}' % number
            requests.append(("/events/billing", body, signed(whsec(2), body)))
        requests.append(("/events/open", b'{"conversation": 1}', {}))
        answers = posted(service.app, requests)
        codes = [answer.status_code for answer in answers]
        assert codes[:5] == [200] * 5
        assert codes[-1] == 200
        assert 429 in codes[5:8]
        assert answers[codes.index(429)].headers["retry-after"] == "1"

    def test_unsigned_requests_do_not_count(self, service: Service) -> None:
        """Unsigned requests do not use the rate: an unsigned client cannot block a route."""
        body = b'{"id": 1}'
        requests = [("/events/billing", body, signed(whsec(0), body)) for _ in range(20)]
        codes = {answer.status_code for answer in posted(service.app, requests)}
        assert codes == {401}
        assert post(service.app, "/events/billing", body, signed(whsec(2), body)).status_code == 200

    def test_rate_counts_events(self) -> None:
        """The rate counts events, not requests."""
        clock = ManualClock(0)
        rate = Rate(10, clock)
        rate.spend(35)
        assert rate.wait() == 3
        clock.advance(2_600_000)
        assert rate.wait() == 0

    def test_max_events(self, caplog: pytest.LogCaptureFixture) -> None:
        """A request with too many events gets 413 as a whole, with the limit and its setting. The store is not called,
        and the rate is not used."""
        gate = Gate(CountingStore())
        app = app_of(gate, most=3, limits=Limits(Rate(3, ManualClock(0))))
        before = CountingStore.calls
        many = [b'[{"id": 1}, {"id": 2}, {"id": 3}, {"id": 4}]', b"[1, 1, 1, 1]"]
        answers = posted(app, [("/events", body, {}) for body in many])
        assert [answer.status_code for answer in answers] == [413, 413]
        assert answers[0].headers["content-type"] == "application/problem+json"
        detail = "the request has more than 3 events (serve.max_events); send it in parts"
        assert answers[0].json()["detail"] == detail
        assert "route default: a request from 127.0.0.1 had more than 3 events" in caplog.text
        assert CountingStore.calls == before
        assert post(app, "/events", b'[{"id": 1}, {"id": 2}, {"id": 3}]').status_code == 200
        gate.close()

    def test_live_keys(self) -> None:
        """A route at its limit of live keys gets 429 until some expire; duplicates do not count."""
        clock = ManualClock(1_000_000_000)
        gate = Gate(MemoryStore(clock=clock), retention="60s")
        app = app_of(gate, limits=Limits(None, LiveKeys(3, 60_000_000, clock)))
        answers = posted(app, [("/events", b'{"id": %d}' % number, {}) for number in (1, 1, 2, 2, 3, 4)])
        assert [answer.status_code for answer in answers] == [200] * 5 + [429]
        assert 55 <= int(answers[-1].headers["retry-after"]) <= 62
        clock.advance(62_000_000)
        assert post(app, "/events", b'{"id": 4}').status_code == 200
        gate.close()

    def test_live_keys_of_dead_letters(self) -> None:
        """Equal invalid or conflicting bodies share one dead letter, and count once until it expires."""
        clock = ManualClock(1_000_000_000)
        store = MemoryStore(clock=clock)
        gate = Gate(store, retention="60s")
        limit = LiveKeys(4, 60_000_000, clock)
        app = app_of(gate, limits=Limits(None, limit))
        bodies = [b'{"id": 1}', *[b'{"broken'] * 5, *[b'{"id": 1, "a": 1}'] * 5, b'{"id": 2}', b'{"id": 3}']
        codes = [answer.status_code for answer in posted(app, [("/events", body, {}) for body in bodies])]
        assert codes == [200] + [400] * 5 + [200] * 6 + [429]
        another = LiveKeys(5, 60_000_000, clock)
        another.count_in(store.browse())
        app = app_of(gate, limits=Limits(None, another))
        codes = [answer.status_code for answer in posted(app, [("/events", body, {}) for body in bodies])]
        assert codes == [200] + [400] * 5 + [200] * 7
        clock.advance(62_000_000)
        assert limit.wait() == 0
        gate.close()

    def test_live_keys_of_the_store(self) -> None:
        """Records that the store already has count too."""
        store = MemoryStore()
        gate = Gate(store)
        gate.run_batch([{"id": number} for number in range(3)], lambda event: None)
        limit = LiveKeys(3, 60_000_000, wall)
        assert limit.wait() == 0
        limit.count_in(store.browse())
        assert limit.wait() > 0
        gate.close()


BODY = b'{"id":"evt-1","type":"call.ended","left":1}'
HEADERS = [(b"content-type", b"application/json")]


class ReadCounter:
    """Counts the calls of `read`."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.count = 0
        self._read = read
        monkeypatch.setattr(route_module, "read", self)

    def __call__(self, *arguments: Any, **more: Any) -> list[Event]:
        self.count += 1
        return self._read(*arguments, **more)


def statuses(route: Route, *requests: tuple[bytes, list[tuple[bytes, bytes]]]) -> list[str]:
    """The statuses of these requests, sent one after the other."""

    async def main() -> list[str]:
        answers = [await route.respond(body, headers, lambda: "here", InFlightBudget()) for body, headers in requests]
        bodies = [msgspec.json.decode(answer.body) for answer in answers]
        return [each.get("outcome", each["status"]) for each in bodies]

    return asyncio.run(main())


def route_of(handler: Any) -> Route:
    return Route("default", InlineAdmission(Gate(MemoryStore()), handler, ThreadPoolExecutor(1)), Metrics())


def test_duplicates_are_parsed_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """Bodies that are identical to the byte are parsed once as duplicates; a body that differs in one byte is
    parsed."""
    route = route_of(lambda event: None)
    readings = ReadCounter(monkeypatch)
    assert statuses(route, *[(BODY, HEADERS)] * 20) == ["processed"] + ["duplicate"] * 19
    assert readings.count == 2
    assert statuses(route, (BODY.replace(b":1}", b": 1}"), HEADERS)) == ["duplicate"]
    assert readings.count == 3


def test_handlers_get_fresh_events() -> None:
    """If a handler changes an event and fails, the next attempt gets the event as it was delivered."""
    given: list[int] = []

    def handler(event: Event) -> None:
        given.append(event.body.pop("left"))
        if len(given) < 3:
            raise ValueError("boom")

    route = route_of(handler)
    assert statuses(route, *[(BODY, HEADERS)] * 6) == ["failed", "failed", "processed", *["duplicate"] * 3]
    assert given == [1, 1, 1]


def test_duplicate_while_handler_changes_event() -> None:
    """A duplicate that arrives while a handler changes the event is compared with the event as it was delivered."""
    gate = Gate(MemoryStore())
    started, go = asyncio.Event(), asyncio.Event()

    async def handler(event: Event) -> None:
        event.body["id"] = "another"
        started.set()
        await go.wait()

    async def main() -> list[str]:
        route = Route("default", InlineAdmission(gate, handler, ThreadPoolExecutor(1)), Metrics())

        async def status() -> str:
            body = msgspec.json.decode((await route.respond(BODY, HEADERS, lambda: "here", InFlightBudget())).body)
            return str(body.get("outcome", body["status"]))

        go.set()
        before = [await status() for _ in range(3)]
        for entry in gate.store.browse():
            gate.store.reset([Reset(entry.namespace, entry.key)])
        gate._engine._cache._new.clear()
        started.clear()
        go.clear()
        running = asyncio.create_task(status())
        await started.wait()
        copy = await status()
        go.set()
        return [*before, copy, await running]

    assert asyncio.run(main()) == ["processed", "duplicate", "duplicate", "in_flight", "processed"]


def test_cloudevent_headers(monkeypatch: pytest.MonkeyPatch) -> None:
    """With CloudEvent headers, the same body under another id is another event."""
    route = route_of(lambda event: None)
    clouds = [
        [(b"ce-specversion", b"1.0"), (b"ce-id", each), (b"ce-source", b"/a"), (b"ce-type", b"t"), *HEADERS]
        for each in (b"one", b"two")
    ]
    asked = [(BODY, HEADERS)] * 3 + [(BODY, clouds[0])] * 3 + [(BODY, clouds[1])] * 2
    assert statuses(route, *asked) == [
        "processed",
        *["duplicate"] * 2,
        "processed",
        *["duplicate"] * 2,
        "processed",
        "duplicate",
    ]


def test_cloudevent_headers_not_utf8() -> None:
    """An id that is not UTF-8 is invalid; a UTF-8 id is the same with and without percent-encoding."""
    route = route_of(lambda event: None)
    asked = [
        (BODY, [(b"ce-specversion", b"1.0"), (b"ce-id", each), (b"ce-source", b"/a"), (b"ce-type", b"t"), *HEADERS])
        for each in (b"\xff", b"\xfe", b"%FF", "ÿ".encode(), b"%C3%BF")
    ]
    assert statuses(route, *asked) == ["invalid", "invalid", "invalid", "processed", "duplicate"]


def test_cache_is_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    """The cache of parsed bodies is bounded in entries, and does not hold large bodies."""
    monkeypatch.setattr(route_module, "_MAX_CACHED_BODIES", 4)
    route = route_of(lambda event: None)
    bodies = [b'{"id":"%d"}' % number for number in range(40)] + [b'{"id":"x","much":"%s"}' % (b"y" * 20_000)]
    statuses(route, *[(body, HEADERS) for body in bodies for _ in range(2)])
    assert 0 < len(route._parsed_bodies._events) <= 4
    assert bodies[-1] not in route._parsed_bodies._events
