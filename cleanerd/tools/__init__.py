"""Programs around the cleaner: reading, checking and writing logs for people, programs and Spark.

No other package imports this one; the command line loads its commands by name (`cleanerd.cli.main`).

=============  ===============================================================================
`insight`      a log as pieces, slices and columns of records, `verify`, `salvage`, `doctor`
`client`       for other programs: a cooperating writer, a producer and a reader in plain Python
`spark`        the data source `kafka-segments`
`cli`, `demo`  the commands of `cleanerd` on top of these
`kernels`      compiled loops that only these need
=============  ===============================================================================
"""
