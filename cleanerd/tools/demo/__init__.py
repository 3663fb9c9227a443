"""`cleanerd demo`: writes logs, cleans them while a writer goes on, and checks every key."""
