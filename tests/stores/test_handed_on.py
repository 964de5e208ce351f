"""Events that are published and consumed again, on stores that need a server."""

from contextlib import closing

import pytest

from oncegate import Gate
from tests.gate.test_handed_on import CALL, Effects, Sink, message, put
from tests.stores.dynamo_server import DynamoServer
from tests.stores.postgres_server import PostgresServer


@pytest.fixture(params=["postgres", "dynamodb"])
def url(request: pytest.FixtureRequest) -> str:
    if request.param == "postgres":
        server: PostgresServer = request.getfixturevalue("postgres")
        server.empty("oncegate")
        return server.url()
    aws: DynamoServer = request.getfixturevalue("dynamo_server")
    return aws.url(aws.new_table())


def test_published_and_run_once(url: str) -> None:
    """An event is published once and processed once, also if only the key in the message identifies it, and if the gate
    caches no completions."""
    sink, effects = Sink(), Effects()
    with closing(Gate(url, remember=None)) as gate:
        published = gate.run(CALL, sink)
        again = message(put(CALL, str(published.key)))
        consumer = gate.lambda_handler(effects)
        for record in (again, *sink.sent, message(CALL), again):
            assert consumer({"Records": [record]}, None) == {"batchItemFailures": []}
            assert gate.run(CALL, sink).status == "duplicate"
    assert (len(sink.sent), len(effects)) == (1, 1)
