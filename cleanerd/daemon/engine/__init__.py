"""The engine process, which runs Spark and the compiler, and the calls that go to it."""
