"""The long-running daemon: the parts that it is built from, the loops that work on them, the control API, the history."""
