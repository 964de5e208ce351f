"""Routes: who may send where, and that none can touch what another sent."""

import asyncio
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import httpx
import pytest
from standardwebhooks import Webhook

from oncegate import Event, Gate
from oncegate.clocks import wall
from oncegate.errors import SettingError, StoreUnavailable
from oncegate.service.admission import Admission, InFlightBudget, InlineAdmission
from oncegate.service.app import App
from oncegate.service.config import TrustedProxies, networks
from oncegate.service.monitoring import Metrics
from oncegate.service.route import Limits, LiveKeys, Rate, Route
from oncegate.service.service import Service
from oncegate.settings import load
from oncegate.signatures import verifier_of
from oncegate.stores.memory import MemoryStore
from oncegate.testing import ManualClock
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


# What a sender, or somebody in between, may put beside a body whose signature it cannot make.
UNSIGNED = [
    {"ce-specversion": "1.0", "ce-id": "other", "ce-source": "s", "ce-type": "t"},
    {"content-type": "application/cloudevents+json"},
    {"webhook-id": "msg_2", "idempotency-key": "k-2", "x-request-id": "r-2"},
    {"replay-name": "backfill", "x-amz-sns-message-type": "Notification", "x-amz-sns-message-id": "m-2"},
]


class CountingStore(MemoryStore):
    """Counts how often it is asked for anything."""

    asked = 0

    def __getattribute__(self, name: str) -> Any:
        if not name.startswith("_") and callable(getattr(MemoryStore, name, None)):
            CountingStore.asked += 1
        return super().__getattribute__(name)


class Broken(Route):
    """A door behind which nothing can be done."""

    @property
    def admission(self) -> Admission:
        raise RuntimeError("broken")

    @admission.setter
    def admission(self, _admission: Admission) -> None: ...


def post(app: App, path: str, body: bytes, headers: dict[str, str] | None = None) -> httpx.Response:
    (answer,) = posted(app, [(path, body, headers or {})])
    return answer


def posted(app: App, requests: list[tuple[str, bytes, dict[str, str]]]) -> list[httpx.Response]:
    """Post one after the other, in one loop."""

    async def main() -> list[httpx.Response]:
        transport = httpx.ASGITransport(app)  # type: ignore[arg-type]
        async with httpx.AsyncClient(transport=transport, base_url="http://x") as client:
            return [await client.post(path, content=body, headers=headers) for path, body, headers in requests]

    return asyncio.run(main())


def signed(secret: str, body: bytes, at: float | None = None, message: str = "msg_1") -> dict[str, str]:
    """The headers that a sender with the reference library would send."""
    moment = int(time.time() if at is None else at)
    signature = Webhook(secret).sign(message, datetime.fromtimestamp(moment, UTC), body.decode())
    return {"webhook-id": message, "webhook-timestamp": str(moment), "webhook-signature": signature}


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

    def test_a_message_runs_once(self, app: App, effects: list[Any]) -> None:
        """A retry under the same id, signed anew, is a duplicate; the same body under another id is another event."""
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
        """The same id with another body is a conflict, and no duplicate."""
        bodies = b'{"invoice": 1}', b'{"invoice": 2}'
        answers = posted(app, [("/events/crm", body, signed(whsec(0), body)) for body in bodies])
        assert [answer.json()["status"] for answer in answers] == ["processed", "conflict"]

    def test_several_events_in_one_message(self, app: App, effects: list[Any]) -> None:
        """Each event of a message is one, and each is known when the message is sent again."""
        body = b'[{"invoice": "paid"}, {"invoice": "paid"}]'
        answers = posted(app, [("/events/crm", body, signed(whsec(0), body)) for _ in "12"])
        assert [[each["status"] for each in answer.json()["outcomes"]] for answer in answers] == [
            ["processed"] * 2,
            ["duplicate"] * 2,
        ]
        assert effects == [("crm", "msg_1.0"), ("crm", "msg_1.1")]

    @pytest.mark.parametrize("key", ["webhook_id", "keys.webhook_id", "first(event_id, webhook_id)"])
    @pytest.mark.parametrize("signature", ["cxone", "genesys-open-messaging", "bearer", "none"])
    def test_refused_on_other_routes(
        self, key: str, signature: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """Where the header is not signed the service does not start."""
        monkeypatch.setenv("CRM_NOW", "a secret of many bytes")
        (tmp_path / "oncegate.toml").write_text(BY_WEBHOOK_ID.format(key=key, signature=signature))
        with pytest.raises(SettingError, match=r"needs signature=standard-webhooks; .* choose another key"):
            Service(load(tmp_path / "oncegate.toml", environ={}), {"/events/crm": print}, [])


class TestSignatures:
    @pytest.mark.parametrize("name", [name for name in SENDERS if not name.startswith("hmac")])
    def test_the_store_is_never_called(self, name: str) -> None:
        """Whatever is not signed is 401 before it is read: the store is not asked for anything."""
        sender, body = SENDERS[name], b'{"id": "evt-1"}'
        gate = Gate(CountingStore())
        app = _app(gate, verifier=verifier_of(name, {"a": sender.secret(1)}))
        before = CountingStore.asked
        stamp = str(int(time.time()))
        forged = sender.headers(sender.secret(2), body, stamp)
        answers = posted(app, [("/events", body, {}), ("/events", body, forged), ("/events", b"\xff{", forged)])
        assert [answer.status_code for answer in answers] == [401, 401, 401]
        assert {answer.headers["content-type"] for answer in answers} == {"application/problem+json"}
        assert CountingStore.asked == before
        assert post(app, "/events", body, sender.headers(sender.secret(1), body, stamp)).status_code == 200
        assert CountingStore.asked > before
        gate.close()

    def test_the_body_is_what_is_signed(self, service: Service, effects: list[Any]) -> None:
        """One byte more or less, even white space, is 401."""
        body = b'{"id": "evt-1"}'
        headers = signed(whsec(0), body)
        assert post(service.app, "/events/crm", body + b" ", headers).status_code == 401
        assert post(service.app, "/events/crm", body, headers).status_code == 200
        assert effects == [("crm", "evt-1")]

    def test_both_secrets(self, service: Service) -> None:
        """Two secrets are valid at a time, so that a sender can change over; that of another route is not."""
        body = b'{"id": "evt-1"}'
        codes = [post(service.app, "/events/crm", body, signed(whsec(n), body)).status_code for n in range(3)]
        assert codes == [200, 200, 401]

    @pytest.mark.parametrize(("off", "code"), [(-400, 401), (400, 401), (-200, 200), (200, 200)])
    def test_an_old_timestamp(self, service: Service, off: int, code: int) -> None:
        """A signature that is older or newer than five minutes is 401, so that what was overheard is soon worthless."""
        body = b'{"id": "evt-1"}'
        headers = signed(whsec(0), body, time.time() + off)
        assert post(service.app, "/events/crm", body, headers).status_code == code

    def test_a_dot_in_the_id(self, service: Service) -> None:
        """An id with a dot could be read as another id and time: 400."""
        body = b'{"id": "evt-1"}'
        assert post(service.app, "/events/crm", body, signed(whsec(0), body, message="a.b")).status_code == 400

    def test_headers_that_are_not_signed(self, service: Service, effects: list[Any]) -> None:
        """Headers say what an event is only where nothing is signed: a copy must not become new by another header."""
        body = b'{"id": "evt-1"}'
        spread = {"ce-specversion": "1.0", "ce-id": "other", "ce-source": "s", "ce-type": "t"}
        headers = signed(whsec(0), body)
        answers = posted(service.app, [("/events/crm", body, headers), ("/events/crm", body, {**headers, **spread})])
        assert [answer.json()["status"] for answer in answers] == ["processed", "duplicate"]
        assert post(service.app, "/events/open", b'{"conversation": 1}', spread).json()["event_id"] == "other"

    @pytest.mark.parametrize("name", [name for name in SENDERS if not name.startswith("hmac")])
    def test_nothing_that_is_not_signed_tells_of_the_event(self, name: str) -> None:
        """However a route is signed, no other header changes the key, the source or the kind of a copy."""
        sender, body, stamp = SENDERS[name], b'{"id": "evt-1"}', str(int(time.time()))
        gate = Gate(MemoryStore())
        app = _app(gate, verifier=verifier_of(name, {"a": sender.secret(1)}))
        headers = sender.headers(sender.secret(1), body, stamp)
        first, again, *others = posted(
            app,
            [("/events", body, headers) for _ in "12"] + [("/events", body, {**each, **headers}) for each in UNSIGNED],
        )
        assert first.json()["status"] == "processed"
        assert (again.json()["status"], again.json()["kind"]) == ("duplicate", "redelivery")
        told = {tuple(answer.json()[each] for each in ("status", "kind", "key", "event_id")) for answer in others}
        assert told == {("duplicate", "redelivery", first.json()["key"], "evt-1")}
        assert [entry.record.about.source for entry in gate.store.browse()] == ["plain"]

    def test_secrets_are_nowhere(self, service: Service, caplog: pytest.LogCaptureFixture) -> None:
        """No answer, log line or repr has a secret, or the signature that would have been right."""
        body = b'{"id": "evt-1"}'
        right = signed(whsec(0), body)["webhook-signature"]
        answer = post(service.app, "/events/crm", body, {**signed(whsec(2), body)})
        said = answer.text + caplog.text + repr(service.__dict__) + repr([vars(d) for d in service._routes.values()])
        assert answer.status_code == 401
        assert "rejected a request" in caplog.text
        assert not [secret for secret in (whsec(0), whsec(1), whsec(0)[6:], right) if secret in said]


class TestNamespaces:
    def test_one_id_on_two_routes(self, service: Service, effects: list[Any]) -> None:
        """The namespace is the route's, whatever the body says: nobody can suppress another's events."""
        body = b'{"id": "evt-1", "namespace": "billing", "route": "billing", "source": "billing"}'
        first = post(service.app, "/events/crm", body, signed(whsec(0), body))
        other = post(service.app, "/events/billing", body, signed(whsec(2), body))
        assert [first.json()["status"], other.json()["status"]] == ["processed", "processed"]
        assert effects == [("crm", "evt-1"), ("billing", "evt-1")]

    def test_the_key_of_the_route(self, service: Service, effects: list[Any]) -> None:
        """A route has a key, hints and policies of its own."""
        bodies = [b'{"meta": {"id": 1}, "conversation": 7}', b'{"meta": {"id": 2}, "conversation": 7}', b'{"n": 1}']
        answers = [post(service.app, "/events/open", body).json()["status"] for body in bodies]
        assert answers == ["processed", "duplicate", "unguarded"]
        assert effects == [("open", "1"), ("open", None)]

    def test_places_that_are_not_there(self, service: Service) -> None:
        """Where routes are described, only these are served; no answer tells their names."""
        for path in ("/events", "/events/", "/events/none", "/events/crm/", "/events/crm/x", "/events/CRM"):
            answer = post(service.app, path, b'{"id": 1}')
            assert (answer.status_code, "crm" in answer.text) == (404, False)
            assert answer.json()["detail"].endswith("send events to /events/ROUTE")

    def test_same_key_other_content(self, service: Service) -> None:
        """Other content under a known key is a conflict, never a duplicate."""
        bodies = [b'{"id": "evt-1", "n": 1}', b'{"id": "evt-1", "n": 2}']
        answers = [post(service.app, "/events/crm", body, signed(whsec(0), body)) for body in bodies]
        assert [answer.json()["status"] for answer in answers] == ["processed", "conflict"]


def test_what_cannot_be_kept(tmp_path: Path) -> None:
    """Where events cannot be kept until they are run, the service says so at its start, with the way out."""
    (tmp_path / "oncegate.toml").write_text('store = "memory://"\nmode = "mark_first"')
    with pytest.raises(SettingError, match=r"serve.mode=inbox: .*; or choose serve.mode=inline"):
        Service(load(tmp_path / "oncegate.toml", environ={}), {"/events": lambda event: None}, [])


@pytest.mark.parametrize("wrong", ['mode = "mark_first"', 'key = "json:nothing"', 'read.id = "."'])
def test_a_service_that_cannot_be(tmp_path: Path, wrong: str) -> None:
    """A service that is refused leaves no store open, whatever was found to be wrong with it."""
    path = tmp_path / "store" / "oncegate.db"
    path.parent.mkdir()
    (tmp_path / "oncegate.toml").write_text(f'store = "sqlite:///{path}"\n{wrong}')
    settings = load(tmp_path / "oncegate.toml", environ={})
    with pytest.raises(SettingError) as refused:
        Service(settings, {"/events": lambda event: None}, [])
    # An open store has its log beside it, and the error at hand would keep it open.
    assert [file.name for file in path.parent.iterdir()] == ["oncegate.db"], refused.value


class TestLimits:
    def test_too_many_a_second(self, service: Service) -> None:
        """A route that sends too fast is 429 with Retry-After; the others are unaffected."""
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

    def test_only_what_is_signed_counts(self, service: Service) -> None:
        """What is refused uses up nothing: no stranger can have a route's senders refused."""
        body = b'{"id": 1}'
        requests = [("/events/billing", body, signed(whsec(0), body)) for _ in range(20)]
        codes = {answer.status_code for answer in posted(service.app, requests)}
        assert codes == {401}
        assert post(service.app, "/events/billing", body, signed(whsec(2), body)).status_code == 200

    def test_events_count_not_requests(self) -> None:
        """A request with many events uses up as much as many requests."""
        clock = ManualClock(0)
        rate = Rate(10, clock)
        rate.spend(35)
        assert rate.wait() == 3
        clock.advance(2_600_000)
        assert rate.wait() == 0

    def test_too_many_events_in_a_request(self, caplog: pytest.LogCaptureFixture) -> None:
        """A request with more events than may be is 413 as a whole, with the bound and its setting, and the store is
        not asked for anything; what was not taken uses up nothing of the rate."""
        gate = Gate(CountingStore())
        app = _app(gate, most=3, limits=Limits(Rate(3, ManualClock(0))))
        before = CountingStore.asked
        many = [b'[{"id": 1}, {"id": 2}, {"id": 3}, {"id": 4}]', b"[1, 1, 1, 1]"]
        answers = posted(app, [("/events", body, {}) for body in many])
        assert [answer.status_code for answer in answers] == [413, 413]
        assert answers[0].headers["content-type"] == "application/problem+json"
        said = "the request has more than 3 events (serve.max_events); send it in parts"
        assert answers[0].json()["detail"] == said
        assert "route default: a request from 127.0.0.1 had more than 3 events" in caplog.text
        assert CountingStore.asked == before
        assert post(app, "/events", b'[{"id": 1}, {"id": 2}, {"id": 3}]').status_code == 200
        gate.close()

    def test_live_keys(self) -> None:
        """A route that has as many events remembered as it may is 429 until some are forgotten; copies add nothing."""
        clock = ManualClock(1_000_000_000)
        gate = Gate(MemoryStore(clock=clock), retention="60s")
        app = _app(gate, limits=Limits(None, LiveKeys(3, 60_000_000, clock)))
        answers = posted(app, [("/events", b'{"id": %d}' % number, {}) for number in (1, 1, 2, 2, 3, 4)])
        assert [answer.status_code for answer in answers] == [200] * 5 + [429]
        assert 55 <= int(answers[-1].headers["retry-after"]) <= 62
        clock.advance(62_000_000)
        assert post(app, "/events", b'{"id": 4}').status_code == 200
        gate.close()

    def test_live_keys_of_what_is_refused(self) -> None:
        """Equal broken and conflicting bodies share a record each, so they count as one until it is forgotten."""
        clock = ManualClock(1_000_000_000)
        store = MemoryStore(clock=clock)
        gate = Gate(store, retention="60s")
        limit = LiveKeys(4, 60_000_000, clock)
        app = _app(gate, limits=Limits(None, limit))
        bodies = [b'{"id": 1}', *[b'{"broken'] * 5, *[b'{"id": 1, "a": 1}'] * 5, b'{"id": 2}', b'{"id": 3}']
        codes = [answer.status_code for answer in posted(app, [("/events", body, {}) for body in bodies])]
        assert codes == [200] + [400] * 5 + [200] * 6 + [429]
        another = LiveKeys(5, 60_000_000, clock)
        another.count_in(store.browse())
        app = _app(gate, limits=Limits(None, another))
        codes = [answer.status_code for answer in posted(app, [("/events", body, {}) for body in bodies])]
        assert codes == [200] + [400] * 5 + [200] * 7
        clock.advance(62_000_000)
        assert limit.wait() == 0
        gate.close()

    def test_live_keys_of_the_store(self) -> None:
        """What the store remembers from before counts too."""
        store = MemoryStore()
        gate = Gate(store)
        gate.run_batch([{"id": number} for number in range(3)], lambda event: None)
        limit = LiveKeys(3, 60_000_000, wall)
        assert limit.wait() == 0
        limit.count_in(store.browse())
        assert limit.wait() > 0
        gate.close()

    def test_room(self) -> None:
        """More requests or bytes than there is room for are 503 with Retry-After; what leaves makes room."""
        room = InFlightBudget(2, 100)
        gate = Gate("memory://")
        app = _app(gate, room=room)
        room.acquire()
        room.acquire_bytes(90)
        small, large = b'{"id": 1}', b'{"id": "%s"}' % (b"x" * 20)
        answers = posted(app, [("/events", small, {}), ("/events", large, {}), ("/events", small, {})])
        assert [answer.status_code for answer in answers] == [200, 503, 200]
        assert answers[1].headers["retry-after"] == "5"
        room.acquire()
        assert post(app, "/events", small).status_code == 503
        room.release()
        room.release_bytes(90)
        assert post(app, "/events", large).status_code == 200
        gate.close()

    def test_what_is_not_signed_takes_no_room(self) -> None:
        """Where there is no place left, a stranger is still told that it is one: only the known are told to wait."""
        room = InFlightBudget(1)
        gate = Gate("memory://")
        app = _app(gate, room=room, verifier=verifier_of("standard-webhooks", {"a": whsec(1)}))
        body = b'{"id": 1}'
        room.acquire()
        requests = [("/events", body, signed(whsec(number), body)) for number in (2, 1)]
        assert [answer.status_code for answer in posted(app, requests)] == [401, 503]
        room.release()
        assert [answer.status_code for answer in posted(app, requests)] == [401, 200]
        assert (room.requests, room.bytes) == (0, 0)
        gate.close()


class TestReadiness:
    def test_a_store_that_does_not_answer(self, service: Service, monkeypatch: pytest.MonkeyPatch) -> None:
        """Without its store the service is alive but not ready, and it says no more than that."""
        assert [_get(service.app, path).status_code for path in ("/healthz", "/readyz")] == [200, 200]

        def away(*_: object) -> None:
            raise StoreUnavailable("the disk at /secret/place is gone")

        monkeypatch.setattr(service._store, "load", away)
        assert [_get(service.app, path).status_code for path in ("/healthz", "/readyz")] == [200, 503]
        assert "secret" not in _get(service.app, "/readyz").text

    def test_nothing_runs_any_more(self, caplog: pytest.LogCaptureFixture) -> None:
        """When what runs the events has ended by an error, the service says that it is no longer well."""
        gate = Gate("memory://")
        app = _app(gate)

        async def main() -> httpx.Response:
            await app._run_route(Broken("default", app._routes["/events"].admission, Metrics()), asyncio.Event())
            transport = httpx.ASGITransport(app)  # type: ignore[arg-type]
            async with httpx.AsyncClient(transport=transport, base_url="http://x") as client:
                return await client.get("/healthz")

        assert asyncio.run(main()).status_code == 503
        assert "no longer run" in caplog.text
        gate.close()

    def test_about_to_stop(self, service: Service, effects: list[Any]) -> None:
        """Once it is told to stop it is not ready, and what is sent all the same is 503 and not claimed."""
        service.app.drain()
        assert _get(service.app, "/readyz").status_code == 503
        answer = post(service.app, "/events/open", b'{"conversation": 1}')
        assert (answer.status_code, answer.headers["retry-after"]) == (503, "5")
        assert effects == []


class TestProxies:
    @pytest.mark.parametrize(
        ("client", "said", "sender"),
        [
            ("203.0.113.9", "198.51.100.1", "203.0.113.9"),
            ("10.0.0.1", "198.51.100.1", "198.51.100.1"),
            ("10.0.0.1", "6.6.6.6, 198.51.100.1, 10.0.0.2", "198.51.100.1"),
            ("10.0.0.1", "6.6.6.6, not an address", "10.0.0.1"),
            ("10.0.0.1", "", "10.0.0.1"),
            ("::1", "2001:db8::1", "2001:db8::1"),
        ],
    )
    def test_who_is_believed(self, client: str, said: str, sender: str) -> None:
        """X-Forwarded-For counts only from proxies that were named, and only up to the first that was not."""
        proxies = TrustedProxies(networks(["10.0.0.0/8", "::1"], "here"))
        headers = [(b"x-forwarded-for", said.encode())]
        assert proxies.sender({"client": (client, 1), "headers": headers}) == sender

    def test_nobody_by_default(self) -> None:
        """Without proxies in the settings, not even this machine is believed."""
        headers = [(b"x-forwarded-for", b"6.6.6.6")]
        assert TrustedProxies().sender({"client": ("127.0.0.1", 1), "headers": headers}) == "127.0.0.1"


def _get(app: App, path: str) -> httpx.Response:
    async def main() -> httpx.Response:
        transport = httpx.ASGITransport(app)  # type: ignore[arg-type]
        async with httpx.AsyncClient(transport=transport, base_url="http://x") as client:
            return await client.get(path)

    return asyncio.run(main())


def _app(gate: Gate, *, room: InFlightBudget | None = None, **door: Any) -> App:
    metrics = Metrics()
    taking = InlineAdmission(gate, lambda event: None, ThreadPoolExecutor(1))
    return App({"/events": Route("default", taking, metrics, **door)}, metrics, budget=room)
