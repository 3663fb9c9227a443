"""Nothing is lost, and nothing comes back: the seven claims of that, each proven in the file that begins with it.

=======================  ===================================================================================================
`test_old_or_new`        a commit that ends anywhere leaves the old log or the new one, to whoever looks at it next
`test_power_cut`         the same on a real file system whose power fails: what was said to be done is on the disk
`test_swap`              a running broker that swaps segments has the old ones or the new ones, whoever dies meanwhile
`test_what_goes`         a cleaning takes what the rules let go and nothing else, and leaves what Kafka's own cleaner leaves
`test_nothing_back`      what was deleted stays deleted, for replicas too that were away
`test_unknown`           what is not known is no permission: without a word of who knows, nothing is removed
`test_whole_lives`       all of it together: writers, brokers, cleaners and disks that fail in any order, judged from outside
=======================  ===================================================================================================

They run in every gate.
"""
