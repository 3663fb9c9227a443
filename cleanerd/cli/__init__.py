"""The command lines of `cleanerd` and `cleanerctl`, and their output."""
