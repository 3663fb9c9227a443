"""The steps of a swap at which a call fails, by the name that experiments outside this repository know; the tests are in
`tests.proofs.test_swap`.
"""

from tests.proofs.test_swap import STEPS

__all__ = ["STEPS"]
