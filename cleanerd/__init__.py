"""cleanerd: the log cleaner of Kafka, as a program of its own beside the broker."""

__version__ = "0.1.0"
API_VERSION = "cleanerd/v1"
"""Of the documents that commands print and the control API answers with."""
