"""Command lines: `cleanerd` and what it prints."""
