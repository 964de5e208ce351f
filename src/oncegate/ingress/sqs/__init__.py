"""The worker for SQS queues."""

try:
    import botocore  # noqa: F401  # imported here, so that the error names the extra to install
except ImportError as _error:
    from oncegate.errors import MissingExtra

    raise MissingExtra("a worker of an SQS queue", "aws") from _error

from oncegate.ingress.sqs.client import read_address
from oncegate.ingress.sqs.link import sqs_worker

__all__ = ["read_address", "sqs_worker"]
