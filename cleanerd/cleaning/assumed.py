"""The word of an operator (`cleanerd clean --assume`), for what nothing on this machine can show."""

SETTINGS = "settings"
"""The cluster has changed no settings since the last sign of life of the broker."""
REPLICAS = "replicas"
"""Every replica of the logs is in sync."""
NOW = "now"
"""`--now-ms` is meant, although nothing here is as late as that."""
ASSUMPTIONS = (SETTINGS, REPLICAS, NOW)
