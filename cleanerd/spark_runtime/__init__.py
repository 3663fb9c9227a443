"""What runs the steps of a cleaning: Spark, and what stands around it.

Spark gives us worker processes on one machine or many, repeats the tasks of a cluster that fail, and broadcasts.
To move data through its JVM costs more than our work on them, and to begin a job tens of milliseconds. So on one machine
it does little but start workers: tasks take their work from a file, leave their blocks in files, map what they share,
write the parts of a segment to one file, and stay from step to step (`executor.Local`). On a cluster it hands out the
tasks of each step and what they share; blocks stay on the hosts that made them (`executor.Cluster`).
"""
