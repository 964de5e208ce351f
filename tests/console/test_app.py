"""The security of the console, over HTTP with a real service: login, cookies, forms, headers and hostile requests."""

import asyncio
import re
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import ExitStack, closing
from pathlib import Path
from typing import Any
from urllib.parse import parse_qs, quote, urlsplit

import httpx2
import pytest

from oncegate.clocks import wall
from oncegate.console import app
from oncegate.console.access import Access
from oncegate.console.app import _MOST_STREAMS as MOST_STREAMS
from oncegate.console.app import Console
from oncegate.console.pages import PAGES
from oncegate.console.requests import Request, fields, redirect
from oncegate.console.site import Site
from oncegate.console.static import static_url
from oncegate.ingress.http_answers import HttpAnswer
from oncegate.service.config import TrustedProxies
from tests.console.pages.journals import make_journal, make_site, row, write
from tests.console.running import ENVIRON, LOGIN, TOKEN, csrf_of, logged_in
from tests.service.running import Service, certificate, until

SECURITY_HEADERS = {
    "content-security-policy": (
        "default-src 'none'; script-src 'self'; style-src 'self'; connect-src 'self'; img-src 'self';"
        " frame-ancestors 'none'; form-action 'self'; base-uri 'none'; require-trusted-types-for 'script';"
        " trusted-types 'none'"
    ),
    "x-content-type-options": "nosniff",
    "referrer-policy": "same-origin",
    "cross-origin-opener-policy": "same-origin",
}


@pytest.fixture(scope="module")
def service(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Service]:
    with Service(tmp_path_factory.mktemp("console"), environ=ENVIRON) as service:
        yield service


@pytest.fixture
def stranger(service: Service) -> Iterator[httpx2.Client]:
    """A client without a session."""
    with httpx2.Client(base_url=service.url, timeout=30, trust_env=False) as client:
        yield client


@pytest.fixture
def client(service: Service) -> Iterator[httpx2.Client]:
    with logged_in(service) as client:
        yield client


def is_logged_in(client: httpx2.Client) -> bool:
    return client.get("/console").status_code == 200


# ── headers ───────────────────────────────────────────────────────────────────────────────────────────────


def test_every_answer_has_the_security_headers(client: httpx2.Client, stranger: httpx2.Client) -> None:
    answers = {
        "page": client.get("/console"),
        "head": client.head("/console"),
        "no session": stranger.get("/console"),
        "login": stranger.get(LOGIN),
        "wrong token": stranger.post(LOGIN, data={"token": "x"}),
        "redirect": client.get(LOGIN),
        "static": stranger.get(static_url("console.css")),
        "not found": client.get("/console/none"),
        "wrong method": client.request("DELETE", "/console"),
        "wrong form": client.post("/console/logout"),
        "too large": client.post("/console/logout", content=b"x" * 70_000),
        "too many fields": client.get("/console?" + "a=1&" * 300),
        "long address": client.get("/console?" + "a" * 9_000),
        "stream without a session": stranger.get("/console/tail"),
    }

    for name, answer in answers.items():
        assert {header: answer.headers.get(header) for header in SECURITY_HEADERS} == SECURITY_HEADERS, name
        stored = "public, max-age=31536000, immutable" if name == "static" else "no-store"
        assert answer.headers.get_list("cache-control") == [stored], name
        assert "server" not in answer.headers, name
    codes = {name: answer.status_code for name, answer in answers.items()}
    assert codes == {
        "page": 200,
        "head": 200,
        "no session": 401,
        "login": 200,
        "wrong token": 401,
        "redirect": 303,
        "static": 200,
        "not found": 404,
        "wrong method": 405,
        "wrong form": 403,
        "too large": 413,
        "too many fields": 400,
        "long address": 414,
        "stream without a session": 401,
    }


def test_a_stream_has_the_security_headers(client: httpx2.Client) -> None:
    with client.stream("GET", "/console/tail") as tail:
        assert {header: tail.headers.get(header) for header in SECURITY_HEADERS} == SECURITY_HEADERS
        assert tail.headers["cache-control"] == "no-store"
        assert tail.headers["content-type"] == "text/event-stream"


def test_pages_have_nothing_inline(client: httpx2.Client) -> None:
    for path in (LOGIN, *(f"/console{path}" for path in PAGES), "/console/none"):
        text = client.get(path, follow_redirects=True).text
        assert not re.search(r"<script(?![^>]*\bsrc=)|<style|\sstyle=|\son\w+=|javascript:", text), path
        assert not re.search(r"""(?:src|href)="(?!/console|#)""", text), path


# ── the session ───────────────────────────────────────────────────────────────────────────────────────────


def test_the_cookie_is_for_this_site_and_not_for_scripts(stranger: httpx2.Client) -> None:
    answer = stranger.post(LOGIN, data={"token": TOKEN, "user": "Ada"})

    (cookie,) = answer.headers.get_list("set-cookie")
    name, *flags = cookie.split("; ")
    assert name.startswith("oncegate_console_")
    assert flags == ["Path=/console", "Max-Age=43200", "HttpOnly", "SameSite=Strict"]
    assert TOKEN not in cookie


def test_the_cookie_is_secure_with_tls(tmp_path: Path) -> None:
    options, context = certificate(tmp_path)
    with Service(tmp_path, *options, environ=ENVIRON, verify=context) as service:
        answer = service.client.post(LOGIN, data={"token": TOKEN, "user": "Ada"})
        assert answer.headers["set-cookie"].endswith("; Secure")
        ended = service.client.post("/console/logout", data={"csrf": csrf_of(service.client)})
        assert ended.headers["set-cookie"].endswith("; Secure")


@pytest.mark.parametrize(("proxies", "is_secure"), [("127.0.0.1", True), ("10.0.0.0/8", False)])
def test_only_a_trusted_proxy_makes_the_cookie_secure(tmp_path: Path, proxies: str, is_secure: bool) -> None:
    with Service(tmp_path, "--proxies", proxies, environ=ENVIRON) as service:
        headers = {"x-forwarded-proto": "https", "x-forwarded-for": "203.0.113.7"}
        answer = service.client.post(LOGIN, data={"token": TOKEN, "user": "Ada"}, headers=headers)
        assert answer.headers["set-cookie"].endswith("; Secure") is is_secure
        plain = service.client.post(LOGIN, data={"token": TOKEN, "user": "Ada"}, headers={"x-forwarded-proto": "http"})
        assert not plain.headers["set-cookie"].endswith("; Secure")


@pytest.fixture(scope="module")
def guessed(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Service]:
    """A service for wrong tokens: after ten of them, it would refuse the logins of the other tests."""
    with Service(tmp_path_factory.mktemp("guessed"), environ=ENVIRON) as service:
        yield service


@pytest.mark.parametrize("token", ["", "x", TOKEN[:-1], TOKEN + "x", TOKEN.upper(), "ä", "\0", "x" * 3_900])
def test_a_wrong_token_gives_no_session(guessed: Service, token: str) -> None:
    answer = guessed.client.post(LOGIN, data={"token": token})

    assert answer.status_code == 401
    assert "set-cookie" not in answer.headers
    assert "This token is not valid." in answer.text


def test_a_missing_token_gives_no_session(stranger: httpx2.Client) -> None:
    assert stranger.post(LOGIN).status_code == 401
    assert not is_logged_in(stranger)


@pytest.mark.parametrize("user", [None, "", " \t\n\u00a0"])
def test_a_login_needs_a_name(stranger: httpx2.Client, user: str | None) -> None:
    """The record of changes must say who made them."""
    answer = stranger.post(LOGIN, data={"token": TOKEN, **({} if user is None else {"user": user})})

    assert answer.status_code == 400
    assert "set-cookie" not in answer.headers
    assert "Enter your name: the journal records who did what." in answer.text
    assert re.search(r'<input id="user"[^>]* required>', answer.text)


def test_a_forged_or_expired_cookie_is_no_session(stranger: httpx2.Client) -> None:
    access = Access([TOKEN])
    name, _, value = access.cookie("Ada", secure=False).partition(";")[0].partition("=")
    data, _, signature = value.partition(".")
    expired = Access([TOKEN], clock=lambda: time.time() - 13 * 3600).cookie("Ada", secure=False)
    forged = [
        f"{name}={data}.",
        f"{name}={data}.{signature[:-2]}xx",
        f"{name}={data[:-2]}xx.{signature}",
        f"{name}=.{signature}",
        f"{name}=",
        f"{name}=ä.ä",
        f"{name}={'A' * 20_000}.{signature}",
        expired.partition(";")[0],
        Access(["another token, long enough"]).cookie("Ada", secure=False).partition(";")[0],
        f"other={value}",
    ]

    assert stranger.get("/console", headers={"cookie": f"{name}={value}"}).status_code == 200
    for cookie in forged:
        assert stranger.get("/console", headers={b"cookie": cookie.encode("latin-1")}).status_code == 401, cookie


def test_a_cookie_of_another_program_does_no_harm(stranger: httpx2.Client) -> None:
    """Programs on other ports of the same host set cookies that `http.cookies` cannot parse."""
    cookie = Access([TOKEN]).cookie("Ada", secure=False).partition(";")[0]

    assert stranger.get("/console", headers={"cookie": f'a={{"b": "c,d"}}; e f=1; {cookie}'}).status_code == 200


def test_a_changed_token_ends_the_sessions(tmp_path: Path) -> None:
    with Service(tmp_path, environ=ENVIRON) as service, logged_in(service) as client:
        cookies = client.cookies
    with (
        Service(tmp_path, environ={"ONCEGATE_CONSOLE_TOKEN": "another token, long enough"}) as service,
        httpx2.Client(base_url=service.url, cookies=cookies, trust_env=False) as client,
    ):
        assert not is_logged_in(client)


def test_a_session_survives_a_restart(tmp_path: Path) -> None:
    with Service(tmp_path, environ=ENVIRON) as service, logged_in(service) as client:
        cookies = client.cookies
    with (
        Service(tmp_path, environ=ENVIRON) as service,
        httpx2.Client(base_url=service.url, cookies=cookies, trust_env=False) as client,
    ):
        assert is_logged_in(client)


def test_the_name_of_the_person_is_shown_as_text(service: Service) -> None:
    with logged_in(service, user="<script>alert(1)</script>\n" + "x" * 100) as client:
        text = client.get("/console").text

    assert "<script>alert" not in text
    assert "&lt;script&gt;alert(1)&lt;/script&gt; " in text
    assert "x" * 60 not in text


def test_logout_ends_the_session(client: httpx2.Client) -> None:
    answer = client.post("/console/logout", data={"csrf": csrf_of(client)})

    assert (answer.status_code, answer.headers["location"]) == (303, LOGIN)
    assert "Max-Age=0" in answer.headers["set-cookie"]
    assert not is_logged_in(client)


def test_logout_ends_copies_of_the_session_and_their_tails(guessed: Service) -> None:
    with (
        logged_in(guessed) as client,
        httpx2.Client(base_url=guessed.url, cookies=client.cookies, trust_env=False, timeout=30) as copy,
        copy.stream("GET", "/console/tail") as tail,
    ):
        client.post("/console/logout", data={"csrf": csrf_of(client)})
        guessed.post({"id": "evt-1"})
        assert "event: rows" not in tail.read().decode()
        assert not is_logged_in(copy)


@pytest.mark.parametrize("form", [{"csrf": "x"}, {"csrf": "x", "query": "x" * 10_000}])
def test_an_action_after_the_session_has_ended(stranger: httpx2.Client, form: dict[str, str]) -> None:
    """The page says that nothing was changed, and has the form of the login. The size of the form does not matter."""
    answer = stranger.post("/console/dead-letters/start", data=form)

    assert answer.status_code == 401
    assert 'role="alert">Your session has ended. Nothing was changed.<' in answer.text
    assert f'<form method="post" action="{LOGIN}">' in answer.text
    assert 'http-equiv="refresh"' not in answer.text


def test_get_does_not_log_out(client: httpx2.Client) -> None:
    assert client.get("/console/logout").status_code == 404
    assert is_logged_in(client)


# ── brute force ───────────────────────────────────────────────────────────────────────────────────────────


def test_wrong_tokens_are_limited_and_logged_without_the_token(tmp_path: Path) -> None:
    with Service(tmp_path, "--proxies", "127.0.0.1", environ=ENVIRON) as service:
        attacker, other = {"x-forwarded-for": "203.0.113.7"}, {"x-forwarded-for": "203.0.113.8"}
        codes = [
            service.client.post(LOGIN, data={"token": f"guess-{number}"}, headers=attacker).status_code
            for number in range(20)
        ]
        blocked = service.client.post(LOGIN, data={"token": TOKEN, "user": "Ada"}, headers=attacker)
        admitted = service.client.post(LOGIN, data={"token": TOKEN, "user": "Ada"}, headers=other)
        until(lambda: service.stderr().count("wrong token") >= 10)
        log = service.stderr()

    assert codes == [401] * 10 + [429] * 10
    assert (blocked.status_code, blocked.headers["retry-after"]) == (429, "60")
    assert "set-cookie" not in blocked.headers
    assert admitted.status_code == 303
    assert log.count("a login to the console from 203.0.113.7 was refused: wrong token") == 10
    assert "guess-" not in log
    assert TOKEN not in log


# ── forms ─────────────────────────────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize("form", [{}, {"csrf": ""}, {"csrf": "x"}, {"csrf": "ä"}, {"csrf": "A" * 43}])
def test_a_form_without_the_right_csrf_token_changes_nothing(client: httpx2.Client, form: dict[str, str]) -> None:
    answer = client.post("/console/logout", data=form)

    assert answer.status_code == 403
    assert "set-cookie" not in answer.headers
    assert is_logged_in(client)


def test_the_csrf_token_of_another_session_is_not_valid(service: Service, client: httpx2.Client) -> None:
    with logged_in(service, user="Grace") as other:
        answer = client.post("/console/logout", data={"csrf": csrf_of(other)})

    assert answer.status_code == 403
    assert is_logged_in(client)


def test_a_csrf_token_in_the_address_is_not_valid(client: httpx2.Client) -> None:
    assert client.post(f"/console/logout?csrf={csrf_of(client)}").status_code == 403
    assert is_logged_in(client)


@pytest.mark.parametrize(
    "headers",
    [
        {"origin": "https://evil.example"},
        {"origin": "null"},
        {"origin": "http://127.0.0.1"},
        {"sec-fetch-site": "cross-site"},
        {"sec-fetch-site": "same-site"},
        {"sec-fetch-site": "none"},
    ],
)
def test_a_form_of_another_site_changes_nothing(client: httpx2.Client, headers: dict[str, str]) -> None:
    answer = client.post("/console/logout", data={"csrf": csrf_of(client)}, headers=headers)

    assert answer.status_code == 403
    assert "proxy_set_header Host $http_host" in answer.text
    assert is_logged_in(client)
    assert client.post(LOGIN, data={"token": TOKEN, "user": "Ada"}, headers=headers).status_code == 403


def test_a_form_of_this_site_is_accepted(service: Service) -> None:
    for headers in ({"origin": service.url}, {"sec-fetch-site": "same-origin", "origin": "http://a.proxy"}):
        with logged_in(service) as client:
            answer = client.post("/console/logout", data={"csrf": csrf_of(client)}, headers=headers)
            assert answer.status_code == 303


def test_events_go_on_refusing_browsers(client: httpx2.Client, service: Service) -> None:
    """A page of the console is a page too: it cannot send events with the session of a person."""
    answer = client.post("/events", content=b'{"id": "evt-1"}', headers={"origin": service.url})

    assert answer.status_code == 403
    assert service.effects() == []


# ── links ─────────────────────────────────────────────────────────────────────────────────────────────────

HOSTILE_TARGETS = [
    "//evil.example",
    "///evil.example",
    "https://evil.example",
    "https:evil.example",
    "javascript:alert(1)",
    "/console//evil.example",
    "/console/../../evil",
    "/console/..",
    "/console/%2e%2e/evil",
    "/console/%2f%2fevil.example",
    "/console\\@evil.example",
    "/\\evil.example",
    "\\\\evil.example",
    "/console.evil.example",
    "/consoles",
    "/events",
    "/console/none",
    "/console\n//evil.example",
    "/console\r\nset-cookie: a=b",
    "/console/\t/evil.example",
    "\x00/console",
    " /console",
    "/console#x",
    "/console@evil.example",
    "/console/?" + "a=1&" * 300,
    "/console?" + "a" * 1_000,
    "/console?" + "(" * 900,
]


@pytest.mark.parametrize("to", HOSTILE_TARGETS)
def test_the_login_leads_to_pages_of_the_console_only(client: httpx2.Client, stranger: httpx2.Client, to: str) -> None:
    """A link with a hostile address leads to the first page, after the login and with a session."""
    after_login = stranger.post(LOGIN, data={"token": TOKEN, "user": "Ada", "next": to})
    with_session = client.get(LOGIN, params={"next": to})

    for answer in (after_login, with_session):
        assert (answer.status_code, answer.headers["location"]) == (303, "/console/")
        assert answer.headers.get("set-cookie", "").count("=b") == 0


@pytest.mark.parametrize(
    "query", ["a=b", "q=%2F%2Fevil.example", "q=a%0D%0Aset-cookie%3A+a%3Db", "q=%5C%5Cevil", "q=%E2%98%83&before=12"]
)
def test_a_shared_link_survives_the_login(stranger: httpx2.Client, query: str) -> None:
    """A browser withholds the cookie when a chat program opens the link. The page leads to the login within the site,
    and the login leads back to the link."""
    first = stranger.get(f"/console?{query}")
    assert first.status_code == 401
    assert "location" not in first.headers
    refresh = re.search(r'http-equiv="refresh" content="0; url=([^"]+)"', first.text)
    assert refresh
    address = refresh[1].replace("&amp;", "&")
    assert urlsplit(address)[:3] == ("", "", LOGIN)
    assert re.search(r'<a href="/console/login\?next=', first.text)

    form = stranger.get(address).text
    target = re.search(r'name="next" value="([^"]*)"', form)
    assert target
    done = stranger.post(LOGIN, data={"token": TOKEN, "user": "Ada", "next": target[1].replace("&amp;", "&")})

    path, _, found = done.headers["location"].partition("?")
    assert path == "/console/"
    assert parse_qs(found) == parse_qs(query)
    assert len(done.headers.get_list("set-cookie")) == 1
    again = stranger.get(address)  # a person with a session is not asked again
    assert (again.status_code, again.headers["location"]) == (303, done.headers["location"])


def test_a_page_without_a_session_says_nothing(stranger: httpx2.Client) -> None:
    """Without a session, a page that exists cannot be told from a page that does not."""
    assert stranger.get("/console/none").status_code == 401
    assert stranger.post("/console/none").status_code == 401
    assert stranger.get("/console/none").text == stranger.get("/console/nothing").text


# ── hostile requests ──────────────────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize(
    "path",
    [
        "/console/static/../app.py",
        "/console/static/%2e%2e/app.py",
        "/console/static/..%2fapp.py",
        "/console/static/x/console.css",
        "/console/static/console.css",
        "/console/static//etc/passwd",
        "/console/static/%00",
        static_url("console.css") + "/",
        static_url("console.css") + "/../../access.py",
        static_url("console.css").replace("/console.css", "/%2e%2e/console.css"),
    ],
)
def test_only_static_files_are_served(service: Service, path: str) -> None:
    answer = service.raw(b"GET %s HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n" % path.encode())

    assert answer.startswith(b"HTTP/1.1 401 ")
    assert b"import " not in answer


def test_static_files_need_no_session(stranger: httpx2.Client) -> None:
    types = {"console.css": "text/css; charset=utf-8", "console.js": "text/javascript; charset=utf-8"}
    for name, content_type in {**types, "icon.svg": "image/svg+xml"}.items():
        answer = stranger.get(static_url(name))
        assert (answer.status_code, answer.headers["content-type"]) == (200, content_type)


@pytest.mark.parametrize("method", ["PUT", "PATCH", "DELETE", "OPTIONS", "TRACE"])
def test_other_methods_are_refused(client: httpx2.Client, method: str) -> None:
    answer = client.request(method, "/console")

    assert (answer.status_code, answer.headers["allow"]) == (405, "GET, HEAD, POST")


def test_head_has_no_body(client: httpx2.Client) -> None:
    answer = client.head("/console")

    assert (answer.status_code, answer.content) == (200, b"")
    assert client.head("/console/tail").status_code == 404


@pytest.mark.parametrize(
    "body", [b"\xff\xfe%ff%c0%80=%ff", b"csrf=%zz", b"=&&&=", b"\0\0", "csrf=\u2603".encode(), b"%" * 1000, b"{}"]
)
def test_a_broken_form_is_refused(client: httpx2.Client, body: bytes) -> None:
    assert client.post("/console/logout", content=body).status_code == 403
    assert is_logged_in(client)


@pytest.mark.parametrize(
    "query", ["%ff%fe=%c0", "a=%zz", "before=%00", "q=" + quote("\udcff".encode("utf-8", "surrogatepass"))]
)
def test_a_broken_query_is_no_error(client: httpx2.Client, query: str) -> None:
    assert client.get(f"/console?{query}").status_code in (200, 400)


def test_a_huge_form_is_refused(client: httpx2.Client) -> None:
    token = csrf_of(client)
    assert client.post("/console/logout", data={"csrf": token, "x": "x" * 70_000}).status_code == 413
    assert client.post("/console/logout", data={"csrf": token, **{f"f{n}": "" for n in range(300)}}).status_code == 400
    with httpx2.Client(base_url=client.base_url, trust_env=False) as other:
        assert other.post(LOGIN, content=b"x" * 2_000_000).status_code == 413
    assert is_logged_in(client)


def test_a_huge_address_is_refused(client: httpx2.Client, stranger: httpx2.Client) -> None:
    assert client.get("/console?q=" + "x" * 7_900).status_code == 200
    assert client.get("/console?q=" + "x" * 8_000).status_code == 414
    assert client.get("/console/tail?q=" + "x" * 8_000).status_code == 414
    assert stranger.get(f"{LOGIN}?next=" + "x" * 4_000).status_code == 414


def test_without_a_session_only_a_short_form_of_this_site_is_parsed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Forms and queries are parsed in the event loop. A stranger could delay the events of the service with them."""
    parsed: list[int] = []

    def counting(encoded: bytes) -> dict[str, str]:
        parsed.append(len(encoded))
        return fields(encoded)

    monkeypatch.setattr(app, "fields", counting)
    console = Console(make_site(tmp_path), Access([TOKEN]), TrustedProxies())

    def code(method: str, path: str, body: bytes = b"", query: bytes = b"", **headers: str) -> int:
        given = [(name.encode(), value.encode()) for name, value in headers.items()]
        scope = {"method": method, "path": path, "query_string": query, "headers": given, "client": ("192.0.2.1", 1)}
        return asyncio.run(console.respond({**scope, "scheme": "http"}, body)).code

    form = b"token=" + b"%41" * 20_000
    assert code("POST", LOGIN, form) == 413
    assert code("POST", LOGIN, b"token=x", origin="https://evil.example") == 403
    assert code("POST", "/console/none", form[:3_000], form[:900]) == 401
    assert code("GET", LOGIN, query=form[:5_000]) == 414
    assert code("GET", "/console/events", query=form[:1_000]) == 401
    assert parsed == []
    assert code("GET", LOGIN, form) == 200
    assert {code("POST", LOGIN, form[:3_000]) for _ in range(10)} == {401}
    assert max(parsed) == 3_000
    parsed.clear()
    assert code("POST", LOGIN, form[:3_000]) == 429
    assert parsed == []


def test_a_cookie_header_without_a_session_is_cheap() -> None:
    """To split such a header takes milliseconds, and anyone can send it."""
    access, header = Access([TOKEN]), ";" * 30_000
    began = time.process_time()
    for _ in range(100):
        assert access.session(header) is None

    assert time.process_time() - began < 0.1


def test_a_form_that_arrives_in_parts_is_read(client: httpx2.Client) -> None:
    form = f"csrf={csrf_of(client)}".encode()
    answer = client.post("/console/logout", content=iter([form[:9], form[9:]]))

    assert answer.status_code == 303


# ── the service around it ─────────────────────────────────────────────────────────────────────────────────


def test_the_metrics_address_has_no_console(tmp_path: Path) -> None:
    toml = '[serve]\nmetrics_host = "127.0.0.1"\nmetrics_port = 0\n'
    with Service(tmp_path, toml=toml, environ=ENVIRON) as service:
        found = re.search(r"Metrics are at (http://[^\s/]+)/metrics", service.welcome)
        assert found
        with httpx2.Client(base_url=found[1], trust_env=False) as client:
            for path in ("/console", LOGIN, "/console/tail", static_url("console.css")):
                assert client.get(path).status_code == 404
                assert client.post(path, data={"token": TOKEN, "user": "Ada"}).status_code == 404


@pytest.mark.parametrize(
    ("options", "fact"),
    [
        (("--no-console",), None),
        (
            ("--host", "0.0.0.0", "--signature", "none"),  # noqa: S104
            "The console is off: other machines can reach 0.0.0.0, and no token is set; set ONCEGATE_CONSOLE_TOKEN to a"
            " random token.",
        ),
        (
            ("--store", "memory://", "--serve-mode", "inline"),
            "The console is off: only a store in a file has a place for a generated token; set ONCEGATE_CONSOLE_TOKEN"
            " to a random token.",
        ),
    ],
)
def test_without_a_console(tmp_path: Path, options: tuple[str, ...], fact: str | None) -> None:
    with Service(tmp_path, *options) as service:
        lines = [line for line in service.welcome.splitlines() if "onsole" in line]
        url = service.url.replace("0.0.0.0", "127.0.0.1")  # noqa: S104
        with httpx2.Client(base_url=url, trust_env=False) as client:
            assert {client.get(path).status_code for path in ("/console", LOGIN, "/console/tail")} == {404}

    assert lines == ([] if fact is None else [fact])
    assert not (tmp_path / "oncegate.console-token").exists()


def test_a_public_address_with_a_token_has_a_console(tmp_path: Path) -> None:
    with Service(tmp_path, "--host", "0.0.0.0", "--signature", "none", environ=ENVIRON) as service:  # noqa: S104
        assert f"The console is at {service.url}/console.\nThe console has no TLS: " in service.welcome
        with httpx2.Client(base_url=service.url.replace("0.0.0.0", "127.0.0.1"), trust_env=False) as client:  # noqa: S104
            assert client.get("/console").status_code == 401


def test_a_store_in_memory_has_a_console(tmp_path: Path) -> None:
    """A store in memory exists only in the process of the service, so the console uses the same store."""
    options = ("--store", "memory://", "--serve-mode", "inline")
    with Service(tmp_path, *options, environ=ENVIRON) as service:
        service.post({"id": "evt-1"})
        with logged_in(service) as client:
            assert is_logged_in(client)
        assert service.stop() == 0


def test_an_open_stream_does_not_delay_the_stop(tmp_path: Path) -> None:
    with Service(tmp_path, environ=ENVIRON) as service, logged_in(service) as client:
        with client.stream("GET", "/console/tail") as tail:
            assert tail.status_code == 200
            began = time.monotonic()
            service.process.send_signal(signal.SIGTERM)
            tail.read()
            assert service.process.wait(30) == 0
        assert time.monotonic() - began < 5


def test_streams_that_are_not_read_do_not_delay_the_stop(tmp_path: Path) -> None:
    """The buffers of the connections are full, so the service waits for the browser when the signal arrives."""
    with Service(tmp_path, environ=ENVIRON) as service, logged_in(service) as client, ExitStack() as stack:
        with closing(make_journal(tmp_path)) as journal:
            for _ in range(20):
                write(journal, [row(number, wall(), reason="x" * 500) for number in range(500)])
        cookie = "; ".join(f"{name}={value}" for name, value in client.cookies.items())
        ask = f"GET /console/tail?after=1 HTTP/1.1\r\nHost: x\r\nCookie: {cookie}\r\n\r\n".encode()
        for _ in range(4):
            tail = stack.enter_context(socket.socket())
            tail.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 2_048)
            tail.connect(("127.0.0.1", urlsplit(service.url).port))
            tail.sendall(ask)
        time.sleep(2)
        began = time.monotonic()
        assert service.stop() == 0
        assert time.monotonic() - began < 10
        assert "Traceback" not in service.stderr()
        assert "ASGI" not in service.stderr()


HANGING = """
import asyncio, time
from oncegate.console import app
from oncegate.console.access import Access
from oncegate.console.site import Site
from oncegate.service.config import TrustedProxies
from oncegate.settings import load

def page(site, request):
    print("hangs", flush=True)
    time.sleep(60)

app.PAGES = {"/": page}
access = Access(["a token for tests, long enough"])
cookie = access.cookie("Ada", secure=False).partition(";")[0].encode()
console = app.Console(Site(load()), access, TrustedProxies())
scope = {"method": "GET", "path": "/console", "query_string": b"", "headers": [(b"cookie", cookie)], "client": None}
try:
    asyncio.run(asyncio.wait_for(console.respond(scope, b""), 0.5))
except TimeoutError:
    console.close()
    print("closed")
"""


def test_a_page_that_hangs_does_not_delay_the_exit(tmp_path: Path) -> None:
    """The threads of an executor would be joined when the interpreter exits."""
    command = [sys.executable, "-c", HANGING]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, timeout=30)

    assert (done.stdout, done.stderr) == ("hangs\nclosed\n", "")


def test_the_number_of_streams_is_limited(tmp_path: Path) -> None:
    with Service(tmp_path, environ=ENVIRON) as service, logged_in(service) as client:
        tails = [client.send(client.build_request("GET", "/console/tail"), stream=True) for _ in range(MOST_STREAMS)]
        assert [tail.status_code for tail in tails] == [200] * MOST_STREAMS
        refused = client.get("/console/tail")
        assert refused.status_code == 503
        assert refused.text == "16 live tails are open, the maximum. Close one of them."
        assert is_logged_in(client)
        for tail in tails:
            tail.close()
        until(lambda: _status_of_stream(client) == 200)


def _status_of_stream(client: httpx2.Client) -> int:
    with client.stream("GET", "/console/tail") as tail:
        return tail.status_code


def test_a_slow_page_does_not_stop_the_tails(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """One thread makes the pages, one after the other. The tails have another thread."""
    running: list[str] = []
    ended = threading.Event()

    def slow(site: Site, request: Request) -> HttpAnswer:
        running.append(threading.current_thread().name)
        assert ended.wait(20)
        return redirect("/console")

    monkeypatch.setattr(app, "PAGES", {"/": slow})
    access, site = Access([TOKEN]), make_site(tmp_path)
    cookie = access.cookie("Ada", secure=False).partition(";")[0].encode()
    scope = {"method": "GET", "path": "/console", "query_string": b"after=0", "headers": [(b"cookie", cookie)]}
    sent: list[bytes] = []

    async def scenario() -> None:
        console = Console(site, access, TrustedProxies())
        pages = [asyncio.ensure_future(console.respond({**scope, "client": None}, b"")) for _ in range(3)]
        never = asyncio.Event()

        async def receive() -> dict[str, Any]:
            await never.wait()
            return {}

        async def send(message: dict[str, Any]) -> None:
            sent.append(message.get("body", b""))
            if b"event: rows" in sent[-1]:
                console.stop_streams()

        with closing(make_journal(tmp_path)) as journal:
            write(journal, [row(1, wall())])
        async with asyncio.timeout(10):
            await console.stream({**scope, "path": "/console/tail", "client": None}, receive, send)
        assert running == ["oncegate-console-1"]
        ended.set()
        assert [(await page).code for page in pages] == [303] * 3
        console.close()

    asyncio.run(scenario())
    assert any(b"event: rows" in each for each in sent)


def test_events_are_accepted_beside_an_open_stream(service: Service, client: httpx2.Client) -> None:
    with client.stream("GET", "/console/tail") as tail:
        assert tail.status_code == 200
        assert service.post({"id": "evt-2"}).status_code == 200
