"""Plain values that all parts of the daemon share; they import no part of it."""
