"""DynamoDB: how far clocks may differ. The table is looked at with the rest of AWS."""

from oncegate.doctor.facts import StoreFacts
from oncegate.doctor.stores.seen import Seen
from oncegate.stores.dynamodb.settings import read_url


def look(url: str, shown: str) -> Seen:
    return Seen(store=StoreFacts(url=shown, scheme="dynamodb", skew=read_url(url).margin(tested=False)))
