"""Tests; a package so that the broker harness can be imported by its full name."""
