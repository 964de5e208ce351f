"""The pages of docs/reference/ and the code agree. `python -m tests.reference`, or `make reference`, updates the pages.

A page has generated blocks, between these two lines:

    <!-- generated: NAME ARGUMENTS -->
    <!-- end -->

`NAME` is a function in `BLOCKS` (`pages.py`). The program rewrites the text of each block from the code. The rest of
the page is written by hand. In some tables the last column is written by hand, too, because the code has no text for
it. The program keeps the cells of that column, and moves them with their row. For a new row it writes `UNWRITTEN`, and
`test_reference.py` fails until somebody has replaced it. The program also writes the table of statuses in the README,
which has no such lines around it.
"""
