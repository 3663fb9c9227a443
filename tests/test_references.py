"""The references that are committed are those that the tables in the code make."""

import pytest

from tests.harness.programs import ROOT
from tests.references import made


@pytest.mark.parametrize("path", made())
def test_committed_reference_is_current(path: str) -> None:
    """`python -m tests.references` makes it so."""
    assert (ROOT / path).read_text() == made()[path]
