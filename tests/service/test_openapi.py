"""The OpenAPI document is true."""

import subprocess
import sys
from pathlib import Path

from oncegate.service.openapi import DOCUMENT
from tests.service.running import Service


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
