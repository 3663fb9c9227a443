"""Reading logs without cleaning them: records as columns, what is wrong with a directory, what can be saved of a log."""
