"""The tests. Processes that they start many of are forked from a server that has imported all but opened nothing:
starting Python anew would take most of the time."""

import multiprocessing

multiprocessing.set_forkserver_preload(
    ["tests.faults.report", "tests.model.run", "tests.model.ablations", "oncegate.testing"]
)
