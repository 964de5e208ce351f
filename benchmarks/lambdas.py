"""Measure the cold start of a Lambda function against one that only creates a boto3 client."""

from functools import partial
from pathlib import Path
from typing import Final

from benchmarks.imports import started
from benchmarks.measure import Sizes, by_turns, median
from benchmarks.progress import Progress
from benchmarks.report import Aim, Row
from oncegate import open_store
from tests.stores.dynamo_server import REGION, emulated

_OURS: Final = """
from oncegate import Gate
gate = Gate({url!r})
handler = gate.lambda_handler(lambda event: None)
"""
# It describes its table, as Oncegate does to report a missing table at the start.
_BARE: Final = """
import boto3
client = boto3.client("dynamodb", region_name={region!r}, endpoint_url={endpoint!r})
client.describe_table(TableName={table!r})
def handler(event, context):
    client.put_item(TableName={table!r}, Item={{"pk": {{"S": event["id"]}}}})
"""


def rows(sizes: Sizes, folder: Path, progress: Progress) -> list[Row]:
    progress.stage("Lambda, cold start")
    with emulated(folder / "dynamo") as server:
        table = server.new_table()
        open_store(server.url(table)).close()  # creates the table
        bare = _BARE.format(region=REGION, endpoint=server.endpoint, table=table)
        turns = {"ours": partial(started, _OURS.format(url=server.url(table))), "bare": partial(started, bare)}
        rounds = by_turns(turns, sizes.imports, sizes.warm_ups, progress)
    return [
        Row(
            "Lambda handler on DynamoDB, extra cold start",
            "ms",
            max(0.001, median(rounds, lambda took: 1e3 * (took["ours"] - took["bare"]))),
            median(rounds, lambda took: 1e3 * took["bare"]),
            "a bare boto3 handler",
            median(rounds, lambda took: took["ours"] / took["bare"]),
            Aim("at most", 60, on="ours"),
        )
    ]
