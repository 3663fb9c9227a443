"""Spark: session, planner and the steps of a cleaning. The only importer of pyspark."""
