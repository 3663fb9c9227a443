"""Whole runs over whole directories."""
