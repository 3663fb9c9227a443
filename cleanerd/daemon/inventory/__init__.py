"""What the daemon knows of its logs: cheap scans, urgency, totals, and the watcher of the directories."""
