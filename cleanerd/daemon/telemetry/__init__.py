"""Metrics, history and the daemon's own events, with the tables that document them."""
