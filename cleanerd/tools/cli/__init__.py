"""The commands of `cleanerd` that read logs for people: verify, salvage, inspect."""
