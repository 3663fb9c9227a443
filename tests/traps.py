"""What other log cleaners lost data or stopped by, and the tests that walk into each of these traps here.

`tests/test_cases.py` looks up every test.
"""

TRAPS: dict[str, tuple[str, ...]] = {
    "control batches treated as keyed": (
        "kernels/test_oracles.py::test_fingerprints_leave_out_what_does_not_compete",
        "kernels/test_cases_transactions.py::test_c079_commit_marker_removal",
    ),
    "keys compared by a bare hash of 64 bits": (
        "kernels/test_collisions.py::test_keys_that_share_all_64_bits_of_the_bucket_hash_keep_their_values",
        "kernels/test_oracles.py::test_siphash_at_every_length",
    ),
    "null keys": ("kernels/test_cases_cleaning.py::test_c057_unkeyed_messages",),
    "transaction state across groups and partial segments": (
        "kernels/test_cases_transactions.py::test_c078_transactions_spanning_segments",
        "kernels/test_cases_transactions.py::test_c083_committed_transaction_spanning_segments",
        "kernels/test_cases_transactions.py::test_c084_aborted_transaction_spanning_segments",
        "proofs/test_what_goes.py::test_no_layout_changes_the_result",
    ),
    "an offset span beyond 2^31 after a merge": (
        "policy/test_grouping.py::test_c062_c063_c064_c065_groups",
        "cleaning/test_overflowed_segment.py::test_c072_an_overflowed_segment_is_not_written_again",
    ),
    "output larger than its input": (
        "cleaning/test_old_formats.py::test_a_log_that_grows",
        "cleaning/test_old_formats.py::test_growth_of_one_message_is_within_its_bound",
        "kernels/test_cases_cleaning.py::test_c067_c068_a_record_larger_than_any_buffer",
    ),
    "an endless loop at holes and at dirty offsets inside of batches": (
        "kernels/test_cases_cleaning.py::test_c010_c011_holes_at_segment_ends",
        "proofs/test_what_goes.py::test_a_first_dirty_offset_inside_a_batch",
    ),
    "a log start above the base of the active segment": (
        "daemon/test_due_logs.py::test_what_may_be_cleaned_of_a_log_on_disk",
        "cleaning/test_retain.py::test_c141_the_entry_of_the_log_start_goes_when_the_first_segment_says_it",
    ),
    "tombstones that go too early": (
        "kernels/test_cases_cleaning.py::test_c061_tombstone_horizon_counts_from_the_cleaning",
        "kernels/test_cases_cleaning.py::test_d07_tombstone_kept_until_its_horizon",
        "kernels/test_cases_cleaning.py::test_legacy_tombstones_go_by_the_age_of_their_segment",
    ),
    "a first dirty offset that is no longer there": (
        "storage/test_log_dir_reset.py::test_1_7_what_no_cleaning_can_have_written_becomes_the_log_start",
        "storage/test_log_dir_reset.py::test_2_11_a_checkpoint_goes_back_to_what_was_written_later",
        "broker/test_created_again.py::test_what_is_deleted_in_a_topic_that_was_created_again_stays_deleted",
    ),
    "metrics that are lost when threads are reconfigured": (
        "operate/test_metrics.py::test_counters_outlive_a_reload_that_changes_the_number_of_threads",
    ),
    "tombstones that go while a replica is away": (
        "policy/test_tombstones.py::test_nothing_goes_while_another_replica_may_lack_it",
        "cleaning/test_tombstones_stay.py::test_a_quiet_log_keeps_them_while_a_replica_is_away",
        "cleaning/test_tombstones_stay.py::test_a_result_without_them_is_dropped_if_a_replica_has_gone_since",
        "daemon/test_tombstones_stay.py::test_a_log_is_looked_at_once_while_a_replica_is_away_and_cleaned_when_it_is_back",
        "proofs/test_nothing_back.py::test_tombstones_wait_for_a_replica_that_is_away",
    ),
    "a stale .cleaned file (rule 5.19b)": (
        "storage/test_recover.py::test_stale_cleaned_file_does_not_cost_an_interrupted_swap",
    ),
    "checkpoint entries of another directory": (
        "storage/test_checkpoints.py::test_c045_directories_know_nothing_of_each_other",
        "storage/test_log_dir.py::test_the_entry_of_the_directory_where_it_was_goes",
        "simulation/test_directory_mutations.py::test_it_finds_a_checkpoint_with_entries_of_all_directories",
    ),
    "a policy that changes between plan and commit": (
        "cleaning/test_wanted.py::test_a_policy_or_a_lag_that_forbids_the_cleaning_forbids_the_commit",
        "broker/test_live_broker.py::test_a_result_that_its_topic_no_longer_allows_is_dropped",
    ),
}
