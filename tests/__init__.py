"""The tests, and the start method for tests that need many processes."""

import multiprocessing
from typing import Final

# Processes are forked from a server that has imported everything and opened nothing. A new Python process would take
# most of the time. Each fork runs the main module of this process again, so the server imports what `tests.proof`
# imports, too.
FORKS: Final = multiprocessing.get_context("forkserver")
FORKS.set_forkserver_preload(
    ["oncegate.testing", "oncegate.stores.dynamodb", "tests.faults.report", "tests.model.run", "tests.model.ablations"]
)
