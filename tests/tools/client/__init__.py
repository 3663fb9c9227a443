"""Tests of the writer and the reader; a package so that they can share `logs`."""
