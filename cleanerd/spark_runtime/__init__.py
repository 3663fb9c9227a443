"""Spark, which runs the steps of a cleaning, and what surrounds it (architecture 4)."""
