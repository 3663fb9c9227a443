"""Directories that a real broker wrote, and how to write them again."""
