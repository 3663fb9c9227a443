"""What the daemon does to logs: scheduling, states, holds, cleanings, commits, retention, deletions, throttle."""
