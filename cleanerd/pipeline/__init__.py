"""The steps of a cleaning, index to verify: which plan, which tasks, and what a task does. Knows no Spark."""
