"""Steps 8 and 9 of a cleaning, second half: staged groups take the place of their sources, the first dirty offset moves."""
