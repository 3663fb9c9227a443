"""What the daemon tells of its logs: views, explanations, the metrics of a scrape, the line for systemd."""
