"""Which states of a log matter most."""

STATES = (
    "uncleanable",
    "offline",
    "cleaning",
    "aborted",
    "staged",
    "paused",
    "dirty",
    "clean",
    "retained",
    "ignored",
)
"""Of a log, those first that need attention."""
