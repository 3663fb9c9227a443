"""`doctor`: what is wrong with the logs of a broker, what it costs, and which command mends it.

Facts are gathered once (`gather`, `sample`), then rules judge them: each is a small pure function from facts to findings.
"""
