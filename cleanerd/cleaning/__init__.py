"""One cleaning from snapshot to history row, and the retention pass. Knows nothing of threads."""
