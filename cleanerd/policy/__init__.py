"""Decisions, pure: frozen values in, frozen values out. No clock, no files, no bytes."""
