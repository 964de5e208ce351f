"""The OpenAPI document is true."""

import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from oncegate.service.openapi import DOCUMENT
from tests.service.running import Service
from tests.signatures.sending import whsec

TOML = """
[serve]
signature = "none"
mode = "inline"

[route.crm]
signature = "standard-webhooks"
secret_env = "CRM_SECRET"
max_rate = 2
"""


@pytest.fixture(scope="module")
def service(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Service]:
    folder = tmp_path_factory.mktemp("telling")
    with Service(folder, toml=TOML, environ={"CRM_SECRET": whsec(1)}) as service:
        yield service


def test_document_matches_the_service(service: Service) -> None:
    """Requests generated from the document, valid and invalid, are answered as the document says."""
    assert service.client.get("/openapi.json").json() == DOCUMENT
    command = [
        str(Path(sys.executable).parent / "schemathesis"),
        "run",
        f"{service.url}/openapi.json",
        "--checks=not_a_server_error,status_code_conformance,content_type_conformance,response_schema_conformance",
        "--max-examples=8",
        "--no-color",
        "--phases=examples,fuzzing",
    ]
    done = subprocess.run(command, capture_output=True, text=True, timeout=90, cwd=service.folder)
    assert done.returncode == 0, done.stdout[-5_000:]
