"""The long-running daemon: supervisor, workers, states, throttle, control API, history."""
