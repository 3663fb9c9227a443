"""What the daemon tells of its logs: views, explanations, gauges, the line for systemd."""
