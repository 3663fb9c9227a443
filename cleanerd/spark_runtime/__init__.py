"""Running the steps of a cleaning on Spark (architecture 4)."""
