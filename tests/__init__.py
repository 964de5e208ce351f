"""The tests."""

import multiprocessing

# Processes that are started often are forked from a server that has imported all but opened nothing: starting Python
# anew would take most of the time. Each fork runs the main module once more, so what `tests.proof` imports is here too.
multiprocessing.set_forkserver_preload(
    ["tests.faults.report", "tests.model.run", "tests.model.ablations", "oncegate.testing"]
)
