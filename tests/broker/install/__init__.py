"""Installs into running brokers."""
