"""What the daemon reports about its logs: views, explanations, the metrics of a scrape, the line for systemd."""
