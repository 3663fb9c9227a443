"""What the tests are made of; nothing here is a test.

=============  ==========================================================================================================
module         holds
=============  ==========================================================================================================
`broker`       real brokers of any release, one or three, with clients, ledgers and a daemon beside them
`daemon`       daemons: of real parts in this process, or processes of their own
`spark`        the one session that all tests share, and sessions of a test's own
`kernels`      the kernels in plain Python, and the path that a cleaning takes through the real ones
`logs`         logs on disk: small, large, random, dirty, of a broker that stopped
`damage`       everything that can be wrong with the bytes of a log
`clock`        clocks that a test sets
`disks`        disks that lose power, files that fail, processes that are killed, and a broker's start after it
=============  ==========================================================================================================

Worlds by seed are a program of their own: `tests/simulation`.
"""
