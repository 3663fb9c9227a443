"""Directories and files: scan, lock, stage, commit, recover, checkpoints. Executes plans, decides nothing."""
