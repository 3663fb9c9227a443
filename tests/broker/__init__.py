"""A real Kafka broker beside the tests: harness, workloads, dumps, and the tests that need it."""
