"""`cleanerctl`: talks to the daemon over its control socket."""
