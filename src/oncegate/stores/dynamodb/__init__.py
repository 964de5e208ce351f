"""Open a DynamoDB store from its URL."""

try:
    import botocore  # noqa: F401  # imported here so that the error can name the extra to install
except ImportError as _error:
    from oncegate.errors import MissingExtra

    raise MissingExtra("the DynamoDB store", "dynamodb") from _error

from oncegate.clocks import Clock
from oncegate.stores.dynamodb.settings import read_url
from oncegate.stores.dynamodb.store import DynamoStore
from oncegate.stores.dynamodb.transactions import WriteRefused, Writes

__all__ = ["DynamoStore", "WriteRefused", "Writes", "open_dynamodb", "read_url"]


def open_dynamodb(url: str, *, create: bool, clock: Clock | None) -> DynamoStore:
    """Open the store at a URL like `dynamodb://Table?region=eu-central-1`; see docs/stores/dynamodb.md."""
    return DynamoStore(read_url(url), create=create, clock=clock)
