"""The way into a running broker: an agent in its JVM that swaps segments as the broker's own cleaner does.

`java` is the agent's source, compiled by `hatch_build.py`. `attach` brings it into a JVM, `session` talks to it, `brokers`
keeps what is open, `swap` has the request and what a failure leaves, `live_logs` what else a broker is asked.
"""
