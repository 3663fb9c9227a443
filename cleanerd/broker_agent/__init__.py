"""The way into a running broker: an agent in its JVM that swaps segments as the broker's own cleaner does.

`java` is the agent's source, compiled by `hatch_build.py`. `attach` loads it into a JVM, `session` talks to it, `brokers`
keeps open sessions, `swap` has the swap request and the state after each failure, `live_logs` the other requests.
"""
