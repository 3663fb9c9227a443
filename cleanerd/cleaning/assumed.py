"""Facts that an operator vouches for (`cleanerd clean --assume`), because nothing on this machine shows them."""

SETTINGS = "settings"
"""The cluster has changed no settings since the last sign of life of the broker."""
UNCHANGED = "unchanged"
"""Of a rescue: as SETTINGS, but a change that the cluster may never have accepted before stays in doubt."""
REPLICAS = "replicas"
"""Every replica of the logs is in sync."""
NOW = "now"
"""`--now-ms` is meant, although nothing here is as late as that."""
ASSUMPTIONS = (SETTINGS, REPLICAS, NOW)
