"""Workers of SQS queues."""

try:
    import botocore  # noqa: F401  # asked for here, so that the error can say what to install
except ImportError as _error:
    from oncegate.errors import MissingExtra

    raise MissingExtra("a worker of an SQS queue", "aws") from _error

from oncegate.ingress.sqs.options import validate
from oncegate.ingress.sqs.worker import SqsWorker

__all__ = ["SqsWorker", "validate"]
