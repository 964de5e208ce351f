"""The tests, and how they start processes that they need many of."""

import multiprocessing
from typing import Final

# Forked from a server that has imported all but opened nothing: starting Python anew would take most of the time.
# Each fork runs the main module of this process once more, so what `tests.proof` imports is there already too.
FORKS: Final = multiprocessing.get_context("forkserver")
FORKS.set_forkserver_preload(["oncegate.testing", "tests.faults.report", "tests.model.run", "tests.model.ablations"])
