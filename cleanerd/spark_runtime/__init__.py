"""What runs the steps of a cleaning: Spark, and what stands around it (architecture 4)."""
