"""Table of keys, the layers that values come from, and the frozen configuration that they resolve to."""
