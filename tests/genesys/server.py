"""A stateful fake of Genesys Cloud on loopback: its API over HTTP, and its notification WebSocket.

Every request and every answer is validated against facts.json, which a script makes from the official SDK. A request
that the SDK does not know, or an answer that does not have its form, is added to `violations`. So the client of
Oncegate is never checked against itself.
"""

import asyncio
import base64
import json
import re
import sys
import threading
import time
import uuid
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from datetime import UTC, datetime, timedelta
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any
from urllib.parse import parse_qs, urlsplit

import jsonschema_rs
from websockets.asyncio.server import ServerConnection, serve
from websockets.exceptions import ConnectionClosed

from tests.genesys.facts import FACTS

ORGANISATION = "0e5c3f2a-1111-4222-8333-444455556666"
CLIENT_ID = "7a1c9f30-aaaa-4bbb-8ccc-ddddeeeeffff"
SECRET = "genesys-secret-hunter2"  # noqa: S105  # of the fake
OPEN = "/api/v2/conversations/messaging/integrations/open"
MOST_CHANNELS = 20
MOST_TOPICS = 1_000
PERMISSIONS = {
    ("GET", "/api/v2/integrations"): "integrations:integration:view",
    ("POST", "/api/v2/integrations"): "integrations:integration:add",
    ("GET", "/api/v2/integrations/{integrationId}"): "integrations:integration:view",
    ("PATCH", "/api/v2/integrations/{integrationId}"): "integrations:integration:edit",
    ("DELETE", "/api/v2/integrations/{integrationId}"): "integrations:integration:delete",
    ("GET", "/api/v2/integrations/{integrationId}/config/current"): "integrations:integration:view",
    ("PUT", "/api/v2/integrations/{integrationId}/config/current"): "integrations:integration:edit",
    ("GET", OPEN): "messaging:integration:view",
    ("POST", OPEN): "messaging:integration:add",
    ("GET", f"{OPEN}/{{integrationId}}"): "messaging:integration:view",
    ("PATCH", f"{OPEN}/{{integrationId}}"): "messaging:integration:edit",
    ("DELETE", f"{OPEN}/{{integrationId}}"): "messaging:integration:delete",
    ("GET", "/api/v2/authorization/subjects/{subjectId}"): "authorization:grant:view",
}
ALL_PERMISSIONS = {*PERMISSIONS.values(), "analytics:conversationDetail:view", "presence:user:view"}


class Answer(Exception):
    """Ends a request with this status and body."""

    def __init__(self, status: int, body: Any = None, **headers: str) -> None:
        super().__init__(status)
        self.status, self.body, self.headers = status, body, headers


def problem(status: int, code: str, message: str, **params: str) -> Answer:
    return Answer(status, {"status": status, "code": code, "message": message, "messageParams": params})


# ── validation ────────────────────────────────────────────────────────────────────────────────────────────


class Facts:
    """What the SDK knows about the API."""

    def __init__(self) -> None:
        self._document = json.loads(FACTS.read_text())
        self.paths: dict[str, dict[str, Any]] = self._document["paths"]
        # A path without parameters comes before a template that matches it, too.
        order = sorted(self.paths, key=lambda path: path.count("{"))
        self._patterns = {path: re.compile(re.sub(r"\{\w+\}", "([^/]+)", path)) for path in order}
        self._validators: dict[str, Any] = {}

    def find(self, path: str) -> tuple[str, tuple[str, ...]] | None:
        for template, pattern in self._patterns.items():
            if found := pattern.fullmatch(path):
                return template, found.groups()
        return None

    def problems_of_request(self, operation: dict[str, Any], query: dict[str, str], body: Any) -> Iterator[str]:
        known = {each["name"]: each for each in operation["parameters"] if each["in"] == "query"}
        for name, value in query.items():
            if name not in known:
                yield f"unknown parameter {name}"
            elif not self._is_written_as(known[name]["schema"], value):
                yield f"parameter {name}={value!r} is not a {known[name]['schema']}"
        yield from (
            f"missing parameter {name}" for name, each in known.items() if each["required"] and name not in query
        )
        if "requestBody" not in operation:
            if body is not None:
                yield "a body is sent, but the operation has none"
        elif body is None:
            if operation["requestBody"]["required"]:
                yield "the body is missing"
        else:
            yield from self._invalid(operation["requestBody"]["content"]["application/json"]["schema"], body)

    def problems_of_answer(self, operation: dict[str, Any], status: int, body: Any) -> Iterator[str]:
        named = operation["responses"]["2XX" if status < 300 else "default"]
        if "content" not in named:
            if body is not None:
                yield "an answer has a body, but the operation has none"
        elif body is not None:
            yield from self._invalid(named["content"]["application/json"]["schema"], body)
        elif status != 204:
            yield "the answer has no body"

    def _invalid(self, schema: dict[str, Any], value: Any) -> Iterator[str]:
        name = json.dumps(schema)
        if name not in self._validators:
            whole = {**schema, "components": self._document["components"]}
            self._validators[name] = jsonschema_rs.Draft202012Validator(whole, validate_formats=True)
        for error in self._validators[name].iter_errors(value):
            yield f"{'.'.join(map(str, error.instance_path))}: {error.message}"

    @staticmethod
    def _is_written_as(schema: dict[str, Any], value: str) -> bool:
        kind = schema.get("type")
        if kind == "integer":
            return value.isdecimal()
        return value in ("true", "false") if kind == "boolean" else True


# ── the fake ──────────────────────────────────────────────────────────────────────────────────────────────


class FakeGenesys:
    """The state, and how it fails. All times are in seconds."""

    def __init__(self) -> None:
        self.facts = Facts()
        self.violations: list[str] = []
        self.requests: list[str] = []  # "METHOD template"
        self.lock = threading.RLock()
        self.permissions = set(ALL_PERMISSIONS)
        self.token_life = 86_400
        self.tokens: dict[str, float] = {}
        self.faults: list[tuple[str, Callable[[], None]]] = []
        self.unanswered: list[str] = []  # requests that are carried out once without an answer
        self.integrations: dict[str, dict[str, Any]] = {}
        self.configs: dict[str, dict[str, Any]] = {}
        self.stale_states: list[dict[str, Any]] = []  # the next answers show these, not the state of an integration
        self.open: dict[str, dict[str, Any]] = {}
        self.sources: dict[str, str] = {}  # partner event sources in AWS, and their state
        self.source_after = 0  # how often AWS is asked before it has a new source
        self.shows_secret = True
        self.rejected: dict[str, str] = {}  # topic → the permission that is missing
        self.channels: dict[str, Channel] = {}
        self.channel_life = 86_400.0
        self.heartbeat = 30.0
        self.is_silent = False
        self.lost: list[str] = []  # events that no channel was connected for
        self._http = QuietServer(("127.0.0.1", 0), _handler(self))
        self._http.daemon_threads = True
        self._threads = [threading.Thread(target=self._http.serve_forever, args=(0.02,), daemon=True)]
        self._loop = asyncio.new_event_loop()
        self._threads.append(threading.Thread(target=self._loop.run_forever, daemon=True))
        for thread in self._threads:
            thread.start()
        self.socket_port = self._in_loop(self._serve_sockets())
        self.address = f"http://127.0.0.1:{self._http.server_port}"

    def close(self) -> None:
        self._http.shutdown()
        self._http.server_close()
        self._in_loop(self._close_sockets())
        self._loop.call_soon_threadsafe(self._loop.stop)
        for thread in self._threads:
            thread.join(10)
        self._loop.close()

    def count(self, request: str) -> int:
        return self.requests.count(request)

    # ── faults ────────────────────────────────────────────────────────────────────────────────────────────

    def fail(self, request: str, *answers: Answer) -> None:
        """Answer the next requests that match this pattern, such as `POST /api/v2/integrations`, with failures."""
        for answer in answers:

            def fault(answer: Answer = answer) -> None:
                raise answer

            self.faults.append((request, fault))

    def expire_tokens(self) -> None:
        with self.lock:
            self.tokens.clear()

    # ── requests ──────────────────────────────────────────────────────────────────────────────────────────

    def log_in(self, authorization: str, form: dict[str, list[str]]) -> Answer:
        expected = base64.b64encode(f"{CLIENT_ID}:{SECRET}".encode()).decode()
        self._raise_fault("POST /oauth/token")
        if authorization != f"Basic {expected}" or form != {"grant_type": ["client_credentials"]}:
            return Answer(401, {"error": "invalid_client", "description": "client not found", "error_description": "x"})
        token = f"token-{uuid.uuid4()}"
        self.tokens[token] = time.monotonic() + self.token_life
        return Answer(200, {"access_token": token, "token_type": "bearer", "expires_in": self.token_life})

    def answer(self, method: str, path: str, query: dict[str, str], body: Any, authorization: str) -> Answer:
        found = self.facts.find(path)
        operation = {} if found is None else self.facts.paths[found[0]].get(method.lower(), {})
        if found is None or not operation:
            self.violations.append(f"{method} {path} is not an operation")
            return Answer(404, {"status": 404, "code": "not.found", "message": "HTTP 404"})
        template, arguments = found
        self.requests.append(f"{method} {template}")
        self.violations += [
            f"{method} {path}: {each}" for each in self.facts.problems_of_request(operation, query, body)
        ]
        try:
            self._raise_fault(f"{method} {template}")
            self._authorize(method, template, authorization)
            answer = Answer(*self._handle(operation["operationId"], arguments, query, body))
        except Answer as failure:
            answer = failure
        if answer.status == LOST:
            return answer
        if f"{method} {template}" in self.unanswered:
            self.unanswered.remove(f"{method} {template}")
            return Answer(LOST)
        self.violations += [
            f"answer to {method} {path}: {each}"
            for each in self.facts.problems_of_answer(operation, answer.status, answer.body)
        ]
        return answer

    def _raise_fault(self, request: str) -> None:
        for index, (pattern, fault) in enumerate(self.faults):
            if re.fullmatch(pattern, request):
                del self.faults[index]
                fault()
                return

    def _authorize(self, method: str, template: str, authorization: str) -> None:
        token = authorization.removeprefix("Bearer ")
        if self.tokens.get(token, 0) < time.monotonic():
            raise problem(401, "bad.credentials", "Invalid login credentials.")
        needed = PERMISSIONS.get((method, template))
        if needed is not None and needed not in self.permissions:
            text = f"Unable to perform the requested action. You must have at least one of: [{needed}]"
            raise problem(403, "missing.any.permissions", text, permissions=f"[{needed}]")

    def _handle(self, name: str, arguments: tuple[str, ...], query: dict[str, str], body: Any) -> tuple[int, Any]:
        handler: Callable[..., tuple[int, Any]] = getattr(self, f"_{name}")
        with self.lock:
            return handler(*arguments, **({} if body is None else {"body": body}), query=query)

    # ── the account ───────────────────────────────────────────────────────────────────────────────────────

    def _get_tokens_me(self, query: dict[str, str]) -> tuple[int, Any]:
        return 200, {"organization": {"id": ORGANISATION, "name": "Example"}, "authorizedScope": []}

    def _get_authorization_subjects_me(self, query: dict[str, str]) -> tuple[int, Any]:
        raise problem(400, "bad.request", "This request requires a user context.")

    def _get_authorization_subject(self, subject: str, query: dict[str, str]) -> tuple[int, Any]:
        if subject != CLIENT_ID:
            raise problem(404, "not.found", "no such subject")
        policies = [
            {"domain": domain, "entityName": entity, "actions": [action]}
            for domain, entity, action in (each.split(":") for each in sorted(self.permissions))
        ]
        role = {"id": "role-1", "name": "Oncegate", "policies": policies}
        return 200, {"id": subject, "grants": [{"subjectId": subject, "role": role}]}

    # ── integrations ──────────────────────────────────────────────────────────────────────────────────────

    def _get_integrations(self, query: dict[str, str]) -> tuple[int, Any]:
        kind = query.get("integrationType")
        listed = [each for each in self.integrations.values() if kind in (None, each["integrationType"]["id"])]
        return 200, _page(listed, query)

    def _post_integrations(self, query: dict[str, str], body: Any) -> tuple[int, Any]:
        id_ = str(uuid.uuid4())
        kind = body["integrationType"]["id"]
        made = {"id": id_, "name": body.get("name", kind), "integrationType": {"id": kind}}
        made |= {"intendedState": "DISABLED", "reportedState": {"code": "INACTIVE"}}
        self.integrations[id_] = made
        self.configs[id_] = {"id": id_, "name": made["name"], "version": 1, "properties": {}, "advanced": {}}
        return 200, made

    def _get_integration(self, id_: str, query: dict[str, str]) -> tuple[int, Any]:
        found = _existing(self.integrations, id_)
        shown = json.loads(json.dumps(found))
        if self.stale_states:
            return 200, {**shown, "reportedState": self.stale_states.pop()}
        if found["reportedState"]["code"] == "ACTIVATING":
            self._activate(id_, found)
        return 200, shown

    def _activate(self, id_: str, found: dict[str, Any]) -> None:
        properties = self.configs[id_]["properties"]
        if not all(properties.get(name) for name in ("awsAccountId", "awsAccountRegion", "eventSourceSuffix")):
            message = "awsAccountId, awsAccountRegion and eventSourceSuffix are required"
            found["reportedState"] = {"code": "ERROR", "detail": {"message": message}}
            return
        found["reportedState"] = {"code": "ACTIVE"}
        name = f"aws.partner/genesys.com/cloud/{ORGANISATION}/{properties['eventSourceSuffix']}"
        self.sources.setdefault(name, "PENDING")

    def _patch_integration(self, id_: str, query: dict[str, str], body: Any) -> tuple[int, Any]:
        found = _existing(self.integrations, id_)
        found["intendedState"] = body.get("intendedState", found["intendedState"])
        is_on = found["intendedState"] == "ENABLED"
        found["reportedState"] = {"code": "ACTIVATING" if is_on else "INACTIVE"}
        return 200, json.loads(json.dumps(found))

    def _delete_integration(self, id_: str, query: dict[str, str]) -> tuple[int, Any]:
        found = _existing(self.integrations, id_)
        suffix = self.configs.pop(id_)["properties"].get("eventSourceSuffix")
        self.sources.pop(f"aws.partner/genesys.com/cloud/{ORGANISATION}/{suffix}", None)
        del self.integrations[id_]
        return 200, found

    def _get_integration_config_current(self, id_: str, query: dict[str, str]) -> tuple[int, Any]:
        return 200, _existing(self.configs, id_)

    def _put_integration_config_current(self, id_: str, query: dict[str, str], body: Any) -> tuple[int, Any]:
        current = _existing(self.configs, id_)
        if body.get("version") != current["version"]:
            raise problem(409, "general.conflict", "The version of the configuration is not the current one.")
        self.configs[id_] = {**body, "id": id_, "version": current["version"] + 1}
        return 200, self.configs[id_]

    # ── Open Messaging ────────────────────────────────────────────────────────────────────────────────────

    def _get_conversations_messaging_integrations_open(self, query: dict[str, str]) -> tuple[int, Any]:
        return 200, _page([self._shown(each) for each in self.open.values()], query)

    def _post_conversations_messaging_integrations_open(self, query: dict[str, str], body: Any) -> tuple[int, Any]:
        id_ = str(uuid.uuid4())
        self.open[id_] = {**body, "id": id_, "status": "Active", "createStatus": "Initiated"}
        return 200, self._shown(self.open[id_])

    def _get_conversations_messaging_integrations_open_integration_id(
        self, id_: str, query: dict[str, str]
    ) -> tuple[int, Any]:
        found = _existing(self.open, id_)
        shown = self._shown(found)
        found["createStatus"] = "Completed"
        return 200, shown

    def _patch_conversations_messaging_integrations_open_integration_id(
        self, id_: str, query: dict[str, str], body: Any
    ) -> tuple[int, Any]:
        _existing(self.open, id_).update(body)
        return 200, self._shown(self.open[id_])

    def _delete_conversations_messaging_integrations_open_integration_id(
        self, id_: str, query: dict[str, str]
    ) -> tuple[int, Any]:
        _existing(self.open, id_)
        del self.open[id_]
        return 204, None

    def _shown(self, integration: dict[str, Any]) -> dict[str, Any]:
        hidden = () if self.shows_secret else ("outboundNotificationWebhookSignatureSecretToken",)
        return {name: value for name, value in integration.items() if name not in hidden}

    # ── notifications ─────────────────────────────────────────────────────────────────────────────────────

    def _get_notifications_availabletopics(self, query: dict[str, str]) -> tuple[int, Any]:
        expanded = {"id", *query.get("expand", "").split(",")}
        if "requiresPermissions" in expanded:
            expanded |= {"requiresAnyValidator", "requiresCurrentUser", "requiresCurrentUserOrPermission"}
        preview = query.get("includePreview") == "true"
        listed = [topic for topic in TOPICS if preview or topic["visibility"] == "Public"]
        return 200, {"entities": [{k: v for k, v in topic.items() if k in expanded} for topic in listed]}

    def _post_notifications_channels(self, query: dict[str, str]) -> tuple[int, Any]:
        while len(self.channels) >= MOST_CHANNELS:
            del self.channels[next(iter(self.channels))]
        channel = Channel(f"streaming-5-{uuid.uuid4().hex}", time.monotonic() + self.channel_life)
        self.channels[channel.id] = channel
        expires = datetime.now(UTC) + timedelta(seconds=self.channel_life)
        uri = f"ws://127.0.0.1:{self.socket_port}/channels/{channel.id}"
        return 200, {"id": channel.id, "connectUri": uri, "expires": expires.isoformat().replace("+00:00", "Z")}

    def _get_notifications_channels(self, query: dict[str, str]) -> tuple[int, Any]:
        return 200, {"entities": [{"id": id_} for id_ in self.channels]}

    def _get_notifications_channel_subscriptions(self, id_: str, query: dict[str, str]) -> tuple[int, Any]:
        return 200, {"entities": [{"id": topic} for topic in _existing(self.channels, id_).topics]}

    def _put_notifications_channel_subscriptions(self, id_: str, query: dict[str, str], body: Any) -> tuple[int, Any]:
        _existing(self.channels, id_).topics.clear()
        return self._post_notifications_channel_subscriptions(id_, query, body)

    def _post_notifications_channel_subscriptions(self, id_: str, query: dict[str, str], body: Any) -> tuple[int, Any]:
        channel, listed = _existing(self.channels, id_), []
        if len(channel.topics) + len(body) > MOST_TOPICS:
            raise problem(400, "too.many.topics", f"A channel has at most {MOST_TOPICS} topics.")
        for topic in (each["id"] for each in body):
            if topic in self.rejected:
                missing = self.rejected[topic]
                if query.get("ignoreErrors") != "true":
                    raise problem(403, "missing.any.permissions", "not allowed", permissions=f"[{missing}]")
                rejection = {"rejectionReason": "Missing permission", "missingPermissions": [missing]}
                listed.append({"id": topic, "state": "Rejected", **rejection})
            else:
                channel.topics.add(topic)
                listed.append({"id": topic, "state": "Permitted"})
        return 200, {"entities": listed}

    def _delete_notifications_channel_subscriptions(self, id_: str, query: dict[str, str]) -> tuple[int, Any]:
        _existing(self.channels, id_).topics.clear()
        return 200, None

    # ── the WebSocket ─────────────────────────────────────────────────────────────────────────────────────

    async def _serve_sockets(self) -> int:
        self._socket_server = await serve(self._serve_channel, "127.0.0.1", 0, ping_interval=None)
        return int(next(iter(self._socket_server.sockets)).getsockname()[1])

    async def _close_sockets(self) -> None:
        self._socket_server.close()
        await self._socket_server.wait_closed()

    async def _serve_channel(self, socket: ServerConnection) -> None:
        channel = self.channels.get(socket.request.path.rpartition("/")[2]) if socket.request is not None else None
        if channel is None:
            await socket.close(4_404, "no such channel")
            return
        if channel.socket is not None:  # a channel has one connection
            await channel.socket.close()
        channel.socket = socket
        beating = asyncio.create_task(self._beat(socket, channel))
        try:
            async for message in socket:
                if json.loads(message) == {"message": "ping"} and not self.is_silent:
                    with suppress(ConnectionClosed):
                        await socket.send(metadata("pong"))
        finally:
            beating.cancel()
            if channel.socket is socket:
                channel.socket = None

    async def _beat(self, socket: ServerConnection, channel: "Channel") -> None:
        with suppress(Exception):
            while True:
                await asyncio.sleep(self.heartbeat)
                if time.monotonic() > channel.ends:
                    await socket.close()
                if not self.is_silent:
                    await socket.send(metadata("WebSocket Heartbeat"))

    def publish(self, topic: str, body: dict[str, Any]) -> int:
        """Send an event to all connected channels that have subscribed to the topic; returns their number."""
        frame = json.dumps({"topicName": topic, "version": "2", "eventBody": body, "metadata": {"CorrelationId": "c"}})
        sent: int = self._in_loop(self._send_all(frame, lambda channel: topic in channel.topics))
        if not sent:
            self.lost.append(topic)
        return sent

    def announce_closing(self) -> None:
        """Send the notice of maintenance to all channels."""
        body = {"message": "This socket will be closed in 60 seconds for maintenance."}
        self._in_loop(self._send_all(json.dumps({"topicName": "v2.system.socket_closing", "eventBody": body})))

    async def _send_all(self, frame: str, to: Callable[["Channel"], bool] = lambda _channel: True) -> int:
        sent = 0
        for channel in list(self.channels.values()):
            if channel.socket is not None and to(channel) and not self.is_silent:
                with suppress(ConnectionClosed):
                    await channel.socket.send(frame)
                    sent += 1
        return sent

    def drop(self, id_: str | None = None) -> None:
        """Cut the connection of a channel, or of all channels, without a closing handshake."""

        async def cut() -> None:
            for channel in self.channels.values():
                if channel.socket is not None and id_ in (None, channel.id):
                    channel.socket.transport.abort()

        self._in_loop(cut())

    @property
    def connected(self) -> list["Channel"]:
        """The channels that have a connection and subscriptions."""
        return [each for each in list(self.channels.values()) if each.socket is not None and each.topics]

    def _in_loop(self, coroutine: Any) -> Any:
        return asyncio.run_coroutine_threadsafe(coroutine, self._loop).result(10)


class Channel:
    def __init__(self, id_: str, ends: float) -> None:
        self.id = id_
        self.ends = ends
        self.topics: set[str] = set()
        self.socket: ServerConnection | None = None


def metadata(message: str) -> str:
    return json.dumps({"topicName": "channel.metadata", "eventBody": {"message": message}})


def _page(entities: list[dict[str, Any]], query: dict[str, str]) -> dict[str, Any]:
    size, number = int(query.get("pageSize", "25")), int(query.get("pageNumber", "1"))
    part = entities[size * (number - 1) : size * number]
    count = max(1, -(-len(entities) // size))
    return {"entities": part, "pageSize": size, "pageNumber": number, "total": len(entities), "pageCount": count}


def _existing(things: dict[str, Any], id_: str) -> Any:
    if id_ not in things:
        raise problem(404, "not.found", f"there is no {id_}")
    return things[id_]


class QuietServer(ThreadingHTTPServer):
    """A client may close its connection before the answer, as a listener does that is stopped during a request. The
    server must not print this: the next command of a test would have the text in its stderr."""

    def handle_error(self, request: Any, client_address: Any) -> None:
        if not isinstance(sys.exception(), ConnectionError):
            super().handle_error(request, client_address)


def _handler(fake: FakeGenesys) -> type[BaseHTTPRequestHandler]:
    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"
        disable_nagle_algorithm = True

        def _serve(self) -> None:
            raw = self.rfile.read(int(self.headers.get("content-length") or 0))
            parts = urlsplit(self.path)
            authorization = self.headers.get("authorization", "")
            try:
                if parts.path == "/oauth/token" and self.command == "POST":
                    answer = fake.log_in(authorization, parse_qs(raw.decode()))
                else:
                    query = {name: ",".join(values) for name, values in parse_qs(parts.query).items()}
                    body = json.loads(raw) if raw else None
                    answer = fake.answer(self.command, parts.path, query, body, authorization)
            except Answer as failure:
                answer = failure
            except Exception as error:  # noqa: BLE001  # a bug of the fake must fail the test
                fake.violations.append(f"{self.command} {self.path}: {error!r}")
                answer = Answer(500, {"message": "the fake failed"})
            if answer.status == LOST:
                self.close_connection = True
                return
            self._send(answer)

        def _send(self, answer: Answer) -> None:
            content = b"" if answer.body is None else json.dumps(answer.body).encode()
            self.send_response(answer.status)
            self.send_header("content-type", "application/json")
            self.send_header("content-length", str(len(content)))
            for name, value in answer.headers.items():
                self.send_header(name.replace("_", "-"), value)
            self.end_headers()
            self.wfile.write(content)

        do_GET = do_POST = do_PUT = do_PATCH = do_DELETE = _serve  # noqa: N815  # the names of the base class

        def log_message(self, *arguments: Any) -> None:
            """Keep the output of the tests clean."""

    return Handler


LOST = 999  # the connection is closed without an answer


def topic(name: str, *fields: str, permission: str | None = None, visibility: str = "Public") -> dict[str, Any]:
    """An available topic whose body has these fields."""
    return {
        "id": name,
        "description": f"About {name}",
        "schema": {"type": "object", "properties": {field: {"type": "string"} for field in fields}},
        "requiresPermissions": [permission] if permission else [],
        "transports": ["All"],
        "visibility": visibility,
    }


TOPICS = [
    topic(
        "v2.detail.events.conversation.{id}.customer.end",
        *("eventTime", "conversationId", "participantId", "sessionId", "disconnectType"),
        permission="analytics:conversationDetail:view",
    ),
    topic("v2.users.{id}.presence", "presenceDefinition", "modifiedDate", permission="presence:user:view"),
    topic("v2.routing.queues.{id}.users", "id", "queueId", "joined"),
    topic("v2.audits.entitytype.{id}.entityid.{id}", "id", "eventTime", "action"),
    topic("v2.quality.evaluations", "id", "version", "eventTime"),
    topic("v2.preview.things.{id}", "id", visibility="Preview"),
]


@contextmanager
def running() -> Iterator[FakeGenesys]:
    """A fake whose requests and answers must all be as in the SDK."""
    fake = FakeGenesys()
    try:
        yield fake
    finally:
        fake.close()
    assert fake.violations == []
