"""Reading logs without cleaning them: records as columns, damage in a directory, what can be saved of a log."""
