"""Reports of the daemon: views, explanations, the metrics of a scrape, the line for systemd."""
