"""Hostile bytes for every decoder and reader: `python -m tests.fuzz [--inputs N] [--target NAME] [--seed N]`.

Each input is made from its target's name and a number alone, so a failure prints what makes it again. A target may take
the bytes or refuse them with an error of cleanerd's that names the file. Anything else is a failure: another exception, an
"internal error", a traceback in a thread or in the log, a process that dies, more time or memory than an input may take.

=================  ==================================================================================
module             what is in it
=================  ==================================================================================
`mutate`           from valid bytes to hostile ones
`targets`          the table of targets
`decoders`         targets that take bytes: formats
`directories`      targets that read files: partitions, log directories, cluster metadata, our own state
`requests`         targets that take requests: control API, metrics, the channel of tasks
`guard`            runs a target in a process of its own, within limits of time and memory
=================  ==================================================================================
"""
