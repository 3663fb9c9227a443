"""Facts that an operator vouches for (`cleanerd clean --assume`), because nothing on this machine shows them."""

SETTINGS = "settings"
"""The cluster has changed no settings since the last sign of life of the broker."""
REPLICAS = "replicas"
"""Every replica of the logs is in sync."""
NOW = "now"
"""`--now-ms` is meant, although nothing here is as late as that."""
ASSUMPTIONS = (SETTINGS, REPLICAS, NOW)
