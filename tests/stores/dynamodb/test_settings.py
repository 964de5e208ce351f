"""The URL of the DynamoDB store, and what AWS needs besides."""

import os
import re
import subprocess
import sys

import pytest

from oncegate import open_store
from oncegate.errors import SettingError
from tests.stores.dynamo_server import REGION

URL_ERRORS = [
    ("dynamodb://", "names no table; write 'dynamodb://Table?region=eu-central-1'"),
    ("dynamodb://ab", "invalid table name 'ab'; use 3 to 255 letters"),
    ("dynamodb:///Table", "names no table"),
    ("dynamodb://Table/other", "names no table"),
    ("dynamodb://key:secret@Table", "without credentials"),
    ("dynamodb://Table?colour=red", "has no option 'colour'; it has region, endpoint, skew, timeout, parallel"),
    (
        "dynamodb://Table?endpoint=localhost:8000",
        "is not a valid URL; write it without credentials, such as endpoint=http://127.0.0.1:8000",
    ),
    ("dynamodb://Table?skew=2", "skew='2' is not a duration"),
    ("dynamodb://Table?timeout=never", "timeout='never' is not a duration"),
    ("dynamodb://Table?parallel=0", "is not a number from 1 to 256"),
    ("dynamodb://Table?region=not a region", "cannot create a client for the DynamoDB table Table"),
]


@pytest.mark.parametrize(("url", "message"), URL_ERRORS)
def test_invalid_urls(url: str, message: str) -> None:
    """An invalid URL is refused, and the message says what is allowed."""
    with pytest.raises(SettingError, match=re.escape(message)):
        open_store(url)


def run(code: str, **environment: str) -> subprocess.CompletedProcess[str]:
    """Run code in a new process whose only AWS credentials are the given ones."""
    bare = {name: value for name, value in os.environ.items() if not name.startswith("AWS_")}
    isolated = {"AWS_EC2_METADATA_DISABLED": "true", "AWS_CONFIG_FILE": os.devnull, "HOME": os.devnull}
    everything = bare | isolated | {"AWS_SHARED_CREDENTIALS_FILE": os.devnull} | environment
    return subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60, env=everything)


def test_without_the_extra() -> None:
    """Without botocore the error contains the command that installs it."""
    done = run("import sys; sys.modules['botocore'] = None; import oncegate; oncegate.open_store('dynamodb://Table')")
    assert (
        "MissingExtra: the DynamoDB store needs an optional dependency: pip install 'oncegate[dynamodb]'" in done.stderr
    )


def test_other_stores_do_not_import_botocore() -> None:
    """Opening another store does not import botocore."""
    done = run("import sys, oncegate; oncegate.open_store('memory://'); print('botocore' in sys.modules)")
    assert done.stdout.strip() == "False", done.stderr


@pytest.mark.parametrize(
    ("environment", "message"),
    [
        (
            {"AWS_DEFAULT_REGION": ""},
            "the DynamoDB table Table needs a region; write 'dynamodb://Table?region=eu-central-1' or set AWS_REGION",
        ),
        ({"AWS_REGION": REGION}, "no AWS credentials were found"),
        ({"AWS_DEFAULT_REGION": REGION}, "no AWS credentials were found"),
        ({"AWS_DEFAULT_REGION": REGION, "AWS_PROFILE": "nobody"}, "no AWS credentials were found"),
    ],
)
def test_without_region_or_credentials(environment: dict[str, str], message: str) -> None:
    """Without a region, credentials or the named profile, one sentence says what to set."""
    done = run("import oncegate; oncegate.open_store('dynamodb://Table')", **environment)
    assert re.search(f"StoreRefused: .*{re.escape(message)}", done.stderr.splitlines()[-1]), done.stderr
