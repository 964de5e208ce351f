"""Errors of botocore and AWS services are classified, with one sentence for each."""

import pytest
from botocore.exceptions import (
    BotoCoreError,
    ClientError,
    EndpointConnectionError,
    NoCredentialsError,
    NoRegionError,
    ParamValidationError,
)
from botocore.parsers import ResponseParserError

from oncegate.aws.failures import ErrorHints, classify, is_transient, may_have_been_applied

HINTS = ErrorHints("SQS", "write --region", "ask for it")


def response(code: str, status: int = 400, message: str = "why") -> ClientError:
    body = {"Error": {"Code": code, "Message": message}, "ResponseMetadata": {"HTTPStatusCode": status}}
    return ClientError(body, "Send")


@pytest.mark.parametrize(
    ("error", "kind", "message"),
    [
        (response("ThrottlingException"), "transient", "the queue throttled or failed the request (Throttl"),
        (response("Unknown", status=503), "transient", "(Unknown: why); retry later"),
        (response("ExpiredToken"), "not_sent", "does not accept these AWS credentials (ExpiredToken); renew"),
        (response("AccessDeniedException"), "denied", "the queue does not allow sqs:Send (why); ask for it"),
        (response("QueueDoesNotExist"), "missing", "the queue does not exist; check its name, region and endpoint"),
        (response("404"), "not_aws", "the queue does not answer as SQS does; check the endpoint"),
        (response("NewException"), "refused", "the queue refused sqs:Send (NewException: why)"),
        (NoCredentialsError(), "not_sent", "no AWS credentials were found for the queue"),
        (NoRegionError(), "not_sent", "the queue needs a region; write --region or set AWS_REGION"),
        (EndpointConnectionError(endpoint_url="x"), "transient", "the queue cannot be reached"),
        (ParamValidationError(report="bad"), "refused", "cannot send the request to the queue (Parameter validation"),
        (ResponseParserError("no XML"), "not_aws", "the queue does not answer as SQS does"),
    ],
)
def test_each_kind(error: Exception, kind: str, message: str) -> None:
    """Each error has a kind, and a sentence that names the place and what to do."""
    failure = classify(error, "the queue", "sqs:Send", HINTS)
    assert failure.kind == kind
    assert message in failure.message


@pytest.mark.parametrize(
    ("error", "transient", "applied"),
    [
        (response("ThrottlingException"), True, False),
        (response("InternalServerError", status=500), True, True),
        (response("ValidationException"), False, False),
        (EndpointConnectionError(endpoint_url="x"), True, True),
        (BotoCoreError(), False, True),
    ],
)
def test_what_a_retry_must_know(error: Exception, transient: bool, applied: bool) -> None:
    """A retry must know whether the error is transient, and whether the service may have applied the request."""
    assert (is_transient(error), may_have_been_applied(error)) == (transient, applied)
