"""What makes Spark quick on one machine, and lets tasks report and be told to stop on any."""
