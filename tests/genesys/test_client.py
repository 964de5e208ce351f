"""The client of the API: login, token, retries, pages, and what messages say."""

import re
import traceback

import pytest

from oncegate.errors import GenesysError
from oncegate.genesys.client import (
    ClientCredentials,
    GenesysClient,
    GenesysDenied,
    GenesysMissing,
    GenesysUnavailable,
)
from oncegate.genesys.regions import place_of
from tests.genesys.server import CLIENT_ID, LOST, SECRET, Answer, FakeGenesys, problem

INTEGRATIONS = "/api/v2/integrations"
BODY = {"name": "x", "integrationType": {"id": "amazon-eventbridge-source"}}


class TestToken:
    def test_one_login_for_many_requests(self, client: GenesysClient, fake: FakeGenesys) -> None:
        """A token is used until it expires."""
        for _ in range(3):
            client.call("GET", "/api/v2/tokens/me")
        assert len(fake.tokens) == 1

    def test_a_token_is_renewed_before_it_expires(self, fake: FakeGenesys) -> None:
        """A token is renewed before its end, so that no request fails for it."""
        now = [0.0]
        fake.token_life = 1_000
        client = GenesysClient(place_of("", fake.address), ClientCredentials(CLIENT_ID, SECRET), clock=lambda: now[0])
        client.call("GET", "/api/v2/tokens/me")
        now[0] = 939.0
        client.call("GET", "/api/v2/tokens/me")
        assert len(fake.tokens) == 1
        now[0] = 941.0
        client.call("GET", "/api/v2/tokens/me")
        assert len(fake.tokens) == 2
        client.close()

    def test_a_revoked_token(self, client: GenesysClient, fake: FakeGenesys) -> None:
        """If the token is refused, the client logs in again and repeats the request once."""
        client.call("GET", "/api/v2/tokens/me")
        fake.expire_tokens()
        assert client.call("POST", INTEGRATIONS, body=BODY)["name"] == "x"
        assert (fake.count(f"POST {INTEGRATIONS}"), len(fake.integrations)) == (2, 1)

    def test_a_token_that_is_never_accepted(self, client: GenesysClient, fake: FakeGenesys) -> None:
        """A token that is refused twice is an error, not a loop."""
        fake.token_life = 0
        with pytest.raises(GenesysDenied, match="does not accept its own token"):
            client.call("GET", "/api/v2/tokens/me")

    @pytest.mark.parametrize(("client_id", "secret"), [(CLIENT_ID, "wrong-secret"), ("other", SECRET)])
    def test_wrong_credentials(self, fake: FakeGenesys, client_id: str, secret: str) -> None:
        """The error names the client and what to check."""
        client = GenesysClient(place_of("", fake.address), ClientCredentials(client_id, secret))
        with pytest.raises(GenesysDenied, match=rf"refused the login of the OAuth client {client_id} \(401") as found:
            client.call("GET", "/api/v2/tokens/me")
        client.close()
        assert secret not in "".join(traceback.format_exception(found.value))


class TestRetries:
    def test_a_rate_limit(self, client: GenesysClient, fake: FakeGenesys, waits: list[float]) -> None:
        """After 429 the client waits as long as Retry-After says, also for a request that creates something."""
        limit = problem(429, "too.many.requests", "Rate limit exceeded")
        limit.headers["retry_after"] = "7"
        fake.fail(f"POST {INTEGRATIONS}", limit, limit)
        client.call("POST", INTEGRATIONS, body=BODY)
        assert (waits, len(fake.integrations)) == ([7.0, 7.0], 1)

    def test_a_rate_limit_that_lasts(self, client: GenesysClient, fake: FakeGenesys, waits: list[float]) -> None:
        """A wait of more than two minutes is reported at once."""
        limit = problem(429, "too.many.requests", "Rate limit exceeded")
        limit.headers["retry_after"] = "600"
        fake.fail("GET /api/v2/tokens/me", limit)
        with pytest.raises(GenesysUnavailable, match=r"it limits the rate \(429\); try again later"):
            client.call("GET", "/api/v2/tokens/me")
        assert waits == []

    def test_failures(self, client: GenesysClient, fake: FakeGenesys, waits: list[float]) -> None:
        """A request that only reads is repeated after 5xx and after a lost answer, with growing pauses."""
        down = problem(503, "service.unavailable", "down")
        fake.fail("GET /api/v2/tokens/me", down, Answer(LOST), down)
        assert client.call("GET", "/api/v2/tokens/me")["organization"]
        assert len(waits) == 3
        assert waits == sorted(waits)

    def test_the_last_failure(self, client: GenesysClient, fake: FakeGenesys, waits: list[float]) -> None:
        """After five failures the request fails."""
        fake.fail("GET /api/v2/tokens/me", *[problem(500, "internal", "no")] * 5)
        with pytest.raises(GenesysUnavailable, match="it answered 500; try again later"):
            client.call("GET", "/api/v2/tokens/me")
        assert len(waits) == 4

    def test_a_creation_without_an_answer(self, client: GenesysClient, fake: FakeGenesys, waits: list[float]) -> None:
        """A request that creates something is not repeated if it may have been carried out."""
        fake.unanswered.append(f"POST {INTEGRATIONS}")
        with pytest.raises(GenesysUnavailable, match="It may have been carried out; run the command again"):
            client.call("POST", INTEGRATIONS, body=BODY)
        assert (waits, len(fake.integrations)) == ([], 1)

    def test_a_login_is_repeated(self, client: GenesysClient, fake: FakeGenesys, waits: list[float]) -> None:
        """A login has no effect, so it is always repeated."""
        fake.fail("POST /oauth/token", Answer(LOST), problem(502, "bad.gateway", "x"))
        client.call("GET", "/api/v2/tokens/me")
        assert len(waits) == 2

    def test_nobody_answers(self, waits: list[float]) -> None:
        """A server that is not there is an error with one line."""
        credentials = ClientCredentials(CLIENT_ID, SECRET)
        client = GenesysClient(place_of("", "http://127.0.0.1:9"), credentials, sleep=waits.append)
        with pytest.raises(
            GenesysUnavailable,
            match=r"cannot be used for the login: it does not answer, or this machine cannot reach it \(ConnectError",
        ):
            client.call("GET", "/api/v2/tokens/me")
        client.close()


class TestAnswers:
    def test_pages(self, client: GenesysClient, fake: FakeGenesys) -> None:
        """All pages of a list are read."""
        for number in range(205):
            client.call("POST", INTEGRATIONS, body={**BODY, "name": f"n{number}"})
        names = [found["name"] for found in client.pages(INTEGRATIONS)]
        assert (len(names), fake.count(f"GET {INTEGRATIONS}")) == (205, 3)

    def test_a_missing_permission(self, client: GenesysClient, fake: FakeGenesys) -> None:
        """The error has the permission that the answer names."""
        fake.permissions.discard("integrations:integration:add")
        with pytest.raises(GenesysDenied, match="grant integrations:integration:add to a role") as found:
            client.call("POST", INTEGRATIONS, body=BODY)
        assert found.value.permissions == ("integrations:integration:add",)
        fake.fail(f"GET {INTEGRATIONS}", problem(403, "forbidden", "not allowed"))
        with pytest.raises(
            GenesysDenied, match=r"grant the permission for it to a role of the OAuth client \(in Genesys"
        ):
            client.call("GET", INTEGRATIONS)

    def test_a_missing_resource(self, client: GenesysClient) -> None:
        """A resource that does not exist has an error of its own; `find` returns None."""
        with pytest.raises(GenesysMissing):
            client.call("GET", f"{INTEGRATIONS}/none")
        assert client.find(f"{INTEGRATIONS}/none") is None

    def test_a_refusal(self, client: GenesysClient, fake: FakeGenesys) -> None:
        """Another error has the status and the message."""
        fake.fail(f"POST {INTEGRATIONS}", problem(409, "general.conflict", "A name is used twice"))
        with pytest.raises(
            GenesysError, match=re.escape("refused POST /api/v2/integrations (409: A name is used twice)")
        ):
            client.call("POST", INTEGRATIONS, body=BODY)

    def test_an_answer_that_is_not_json(self, client: GenesysClient, fake: FakeGenesys) -> None:
        """An error page of a proxy has no message."""
        fake.fail("GET /api/v2/tokens/me", Answer(418))
        with pytest.raises(GenesysError, match=r"\(418: HTTP 418\)"):
            client.call("GET", "/api/v2/tokens/me")
        fake.violations.clear()  # this answer is wrong on purpose


def test_secrets_stay_secret(client: GenesysClient, fake: FakeGenesys) -> None:
    """Neither the secret nor the token is in a repr, or in an error that repeats them."""
    client.call("GET", "/api/v2/tokens/me")
    (token,) = fake.tokens
    fake.fail("GET /api/v2/tokens/me", problem(400, "bad", f"your token {token} and secret {SECRET} are wrong"))
    with pytest.raises(GenesysError) as found:
        client.call("GET", "/api/v2/tokens/me")
    texts = [str(found.value), repr(found.value), repr(client), repr(client.credentials), repr(vars(client))]
    assert not any(SECRET in text for text in texts)
    assert token not in str(found.value)
    assert "***" in str(found.value)
