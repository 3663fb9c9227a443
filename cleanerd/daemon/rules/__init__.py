"""The daemon's rules, pure: what has happened goes in, what follows comes out. No thread, clock, file or callback."""
