"""The engine process, in which Spark and the compiler run, and the calls that go to it."""
