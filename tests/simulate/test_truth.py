"""Reading a truth file."""

import pytest

from oncegate.errors import OncegateError
from oncegate.simulate.truth import load


@pytest.mark.parametrize(
    ("lines", "said"),
    [
        ([], "t is not a truth file"),
        (['{"key": "a"}'], "t is not a truth file"),
        (['{"line": "plan", "version": 2, "plan": {}}'], "t is not a truth file of this version"),
        (['{"line": "plan", "version": 1, "plan": {}}', "", '{"line": "eve'], "t:3: invalid line in a truth file"),
    ],
)
def test_what_is_no_truth(lines: list[str], said: str) -> None:
    """Another file, or a truncated one, is refused with its place."""
    with pytest.raises(OncegateError, match=said):
        load([line.encode() for line in lines], "t")
