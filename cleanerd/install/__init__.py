"""Results reach a running broker: one replica at a time is taken out, its log exchanged, and put back (spec disk E6).

A broker opens the files of a partition when it gets a replica, and at no other time short of its start. So:

step       done when it is entered, after it is in the journal   it is over when
---------  ----------------------------------------------------  ----------------------------------------------------
PREPARED   nothing: the prepared directory is complete           the claim is ours and all conditions hold
REMOVING   the cluster is asked to take this broker out of the   the list is the rest, and the broker has renamed its
           partition's list of replicas                          directory away
MOVING     the prepared directory takes the free name            it has it
ADDING     the cluster is asked for the old list                 the list is the old one, the replica is in sync
EVICTING   the reassignment that adds the replica is cancelled,  it is away again; then ADDING, without it
           or, where that is over, as REMOVING; for a prepared
           directory that the broker does not load
ELECTING   a preferred election, if this broker was leader       this broker leads
CLEARING   what is left goes, the journal last                   at once
---------  ----------------------------------------------------  ----------------------------------------------------

`machine` decides, from the journal and from what is seen, and from nothing else: so it makes no difference whether the same
process goes on or another one after a kill. Whatever goes wrong between REMOVING and ADDING leads to ADDING, with or without
the prepared directory. ADDING has no time limit: the old list is asked for until it is there, except where the topic is gone
or the partition was given another list meanwhile.

What could go wrong, and what stands against it

- Power fails: the journal is synced before each step, the prepared directory before its rename, both directories after.
- The broker starts while the prepared directory waits: it lies outside of the log directories, where no broker looks. While
  it lies under the partition's name and the replica is out, a start makes it `-stray`; it carries a mark, and CLEARING takes
  it.
- The broker deletes the renamed directory after a delay: segments that did not change are in both as hard links, and nothing
  of ours needs the old names any more. Indexes, which a broker resizes, are copied. We never delete the renamed directory.
- Records: the prepared log ends exactly where its producer snapshot was taken, at the base of a segment that is not above
  the high watermark. It carries the leader epochs, so that the replica fetches from there instead of from 0; and every
  divergence from the leader is found and cut off by Kafka's own protocol, as for any follower.
- The log start offset: a replica takes that of its leader with its first fetch.
- Checkpoints: when a replica goes the broker drops its entries; a stale high watermark is clipped to what the log holds. The
  log has no first dirty offset afterwards: the broker's cleaner would go through it once more, unless the topic is muted.
- The topic is deleted or recreated: its id is in the journal and in the directory, so that a broker refuses it for another.
- Several log directories: the broker is told which one to take just before it gets the replica, and what it took is looked
  up: a directory of the same partition in a second log directory would keep it from starting.
- The replica cannot get in sync, because the broker is down or has taken the log directory offline (a disk that is full):
  the old list stays asked for, and Kafka ends the reassignment when the broker is able again. A request for a list without a
  replica that is still being added would never end (`machine.is_added_and_removed`): it is cancelled instead.
- A broker that does not answer may be stopped with its files open: nothing is taken from under it.
- Two installs of one partition at a time would each take the other's list for the old one: one claim in the cluster.
- A request that timed out may still be carried out: the cluster gives it up after its time limit, and one that takes back
  waits for that before the journal goes.
"""
