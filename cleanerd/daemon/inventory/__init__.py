"""The daemon's knowledge of its logs: cheap scans, urgency, totals, and the watcher of the directories."""
