"""The daemon's work on logs: scheduling, states, holds, cleanings, commits, retention, deletions, throttle."""
