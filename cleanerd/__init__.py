"""cleanerd: the log cleaner of Kafka, as a program of its own beside the broker."""

__version__ = "0.1.0"
