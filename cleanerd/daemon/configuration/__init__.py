"""The configuration while the daemon runs: watching its files and reloading it, all or nothing."""
