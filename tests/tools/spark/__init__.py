"""The data source for Spark."""
