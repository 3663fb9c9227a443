"""Every conformance case of section 9 of etc/reference/cleaner-behaviour.md, and what proves it.

A case has tests, as file::function below tests/, each of which cites it; or a reason why there is nothing to prove.
`test_cases.py` checks that the table is complete and true.
"""

CASES: dict[str, tuple[str, ...]] = {
    "C001": ("kernels/test_cases_cleaning.py::test_c001_every_key_is_found",),
    "C002": ("kernels/test_cases_cleaning.py::test_c002_an_empty_set_knows_nothing",),
    "C007": ("kernels/test_cases_cleaning.py::test_c007_each_range_supersedes_by_itself",),
    "C009": ("kernels/test_cases_cleaning.py::test_c009_a_large_gap_between_offsets",),
    "C010": ("kernels/test_cases_cleaning.py::test_c010_c011_holes_at_segment_ends",),
    "C011": ("kernels/test_cases_cleaning.py::test_c010_c011_holes_at_segment_ends",),
    "C012": (
        "daemon/test_due_logs.py::test_c012_to_c015_dirtiest_free_log_first",
        "policy/test_cleanable.py::test_c012_to_c015_dirtiest_log_first",
    ),
    "C013": (
        "daemon/test_due_logs.py::test_c012_to_c015_dirtiest_free_log_first",
        "policy/test_cleanable.py::test_c012_to_c015_dirtiest_log_first",
    ),
    "C014": (
        "daemon/test_due_logs.py::test_c012_to_c015_dirtiest_free_log_first",
        "daemon/test_states.py::test_c014_logs_in_progress_are_passed_over",
        "policy/test_cleanable.py::test_c012_to_c015_dirtiest_log_first",
    ),
    "C015": (
        "daemon/test_due_logs.py::test_c012_to_c015_dirtiest_free_log_first",
        "policy/test_cleanable.py::test_c012_to_c015_dirtiest_log_first",
    ),
    "C016": (
        "daemon/test_due_logs.py::test_c016_log_whose_first_batches_cannot_be_read_does_not_stop_the_others",
    ),
    "C017": (
        "daemon/test_due_logs.py::test_c017_checkpoint_beyond_the_log_end_may_have_to_be_reset",
        "policy/test_cleanable.py::test_first_dirty_offset",
    ),
    "C018": (
        "daemon/test_due_logs.py::test_c018_checkpoint_below_the_log_start",
        "policy/test_cleanable.py::test_first_dirty_offset",
    ),
    "C019": (
        "daemon/test_due_logs.py::test_c019_c020_nothing_but_an_active_segment",
        "policy/test_cleanable.py::test_c019_log_start_above_the_active_base",
    ),
    "C020": (
        "daemon/test_due_logs.py::test_c019_c020_nothing_but_an_active_segment",
        "policy/test_cleanable.py::test_c020_checkpoint_above_the_active_base",
    ),
    "C021": (
        "daemon/test_due_logs.py::test_c021_log_that_was_deleted_up_to_its_end",
        "policy/test_cleanable.py::test_c021_reset_without_cleaning",
    ),
    "C022": (
        "daemon/test_due_logs.py::test_c022_log_with_a_bad_checkpoint_beside_a_dirtier_one",
        "policy/test_cleanable.py::test_first_dirty_offset",
    ),
    "C023": (
        "daemon/test_due_logs.py::test_c023_high_watermark_that_a_broker_checkpointed_is_the_bound",
        "policy/test_cleanable.py::test_c023_high_watermark_is_the_bound",
    ),
    "C024": (
        "daemon/test_due_logs.py::test_c024_active_segment_is_the_bound",
        "policy/test_cleanable.py::test_c024_active_segment_is_the_bound",
    ),
    "C025": (
        "daemon/test_due_logs.py::test_c025_min_lag_makes_a_log_due_by_the_mere_passing_of_time",
        "policy/test_cleanable.py::test_c025_min_lag",
    ),
    "C026": ("policy/test_cleanable.py::test_c026_min_lag_all_old",),
    "C027": (
        "daemon/test_due_logs.py::test_c027_checkpoint_between_log_start_and_active_segment_counts",
        "policy/test_cleanable.py::test_first_dirty_offset",
    ),
    "C028": (
        "policy/test_cleanable.py::test_c028_undecided_transaction",
        "storage/test_stability.py::test_c028_undecided_transactional_data_is_not_cleanable",
    ),
    "C029": (
        "daemon/test_due_logs.py::test_c029_c030_sizes_are_those_of_the_files",
        "policy/test_cleanable.py::test_c029_sizes_of_a_clean_log",
    ),
    "C030": (
        "daemon/test_due_logs.py::test_c029_c030_sizes_are_those_of_the_files",
        "policy/test_cleanable.py::test_c030_sizes_with_an_uncleanable_section",
    ),
    "C031": (
        "policy/test_cleanable.py::test_c031_range_query",
        "policy/test_cleanable.py::test_c031_range_query_backwards",
    ),
    "C032": ("policy/test_cleanable.py::test_c032_non_active_from",),
    "C033": (
        "storage/test_scan.py::test_1_19_first_batch_timestamps_are_read_on_demand",
        "storage/test_scan.py::test_1_19_without_a_batch_there_is_no_first_timestamp",
    ),
    "C034": (
        "daemon/test_retention.py::test_c034_c035_c036_every_policy_gets_its_pass_and_nobody_works_on_the_log_meanwhile",
        "daemon/test_due_logs.py::test_c034_to_c036_only_compacted_logs_are_looked_at",
    ),
    "C035": (
        "daemon/test_retention.py::test_c034_c035_c036_every_policy_gets_its_pass_and_nobody_works_on_the_log_meanwhile",
        "daemon/test_due_logs.py::test_c034_to_c036_only_compacted_logs_are_looked_at",
    ),
    "C036": (
        "daemon/test_retention.py::test_c034_c035_c036_every_policy_gets_its_pass_and_nobody_works_on_the_log_meanwhile",
        "daemon/test_due_logs.py::test_c034_to_c036_only_compacted_logs_are_looked_at",
    ),
    "C037": ("daemon/test_retention.py::test_c037_a_compacted_log_that_failed_gets_no_pass",),
    "C038": ("daemon/test_states.py::test_c038_logs_under_retention_are_not_compacted",),
    "C039": ("daemon/test_states.py::test_c039_retention_and_truncation",),
    "C040": ("daemon/test_states.py::test_c040_retention_and_topic_deletion",),
    "C041": ("daemon/test_states.py::test_c041_done_cleaning",),
    "C042": ("daemon/test_states.py::test_c042_done_deleting",),
    "C043": (
        "storage/test_checkpoints_maintenance.py::test_c043_add_offset_to_partition",
        "storage/test_checkpoints.py::test_c043_c049_added_offset_is_read_back_and_a_second_write_replaces_the_first",
    ),
    "C044": ("storage/test_checkpoints_maintenance.py::test_c044_remove_partition_data",),
    "C045": (
        "storage/test_checkpoints_maintenance.py::test_c045_only_the_directory_that_works_is_read",
        "storage/test_checkpoints.py::test_c045_directories_know_nothing_of_each_other",
    ),
    "C046": (
        "storage/test_checkpoints_maintenance.py::test_c046_maybe_truncate_checkpoint_should_truncate_data",
    ),
    "C047": ("storage/test_log_dir.py::test_the_entry_of_the_directory_where_it_was_goes",),
    "C048": (
        "storage/test_checkpoints_maintenance.py::test_c048_partition_that_is_gone_and_removed_is_no_longer_listed",
    ),
    "C049": (
        "storage/test_checkpoints.py::test_c043_c049_added_offset_is_read_back_and_a_second_write_replaces_the_first",
        "storage/test_checkpoints.py::test_c049_no_file_and_an_empty_one_are_no_entries",
    ),
    "C050": (
        "storage/test_checkpoints.py::test_malformed_checkpoint_is_named_with_its_byte_and_never_overwritten",
    ),
    "C051": (
        "daemon/test_supervisor.py::test_c051_a_topic_that_is_not_compacted_any_more_has_its_cleanings_aborted",
    ),
    "C052": (
        "daemon/test_at_work.py::test_c052_reserved_topic_overtakes_a_long_job_and_an_abort_leaves_its_log_alone",
    ),
    "C053": ("kernels/test_cases_cleaning.py::test_c053_superseded_records_go",),
    "C054": ("kernels/test_cases_cleaning.py::test_c054_statistics",),
    "C056": (
        "kernels/test_cases_cleaning.py::test_c056_what_lies_from_the_bound_on_is_as_it_was",
        "policy/test_cleanable.py::test_c056_bound_inside_a_segment",
    ),
    "C057": ("kernels/test_cases_cleaning.py::test_c057_unkeyed_messages",),
    "C058": ("kernels/test_cases_cleaning.py::test_c058_deletes",),
    "C059": ("kernels/test_cases_cleaning.py::test_c059_last_empty_batch_retained",),
    "C061": ("kernels/test_cases_cleaning.py::test_c061_tombstone_horizon_counts_from_the_cleaning",),
    "C062": (
        "policy/test_grouping.py::test_c062_huge_limits",
        "policy/test_grouping.py::test_c062_limits_of_one",
        "policy/test_grouping.py::test_c062_size_of_the_first_three",
        "policy/test_grouping.py::test_c062_index_of_the_first_three",
    ),
    "C063": ("policy/test_grouping.py::test_c063_sparse_offsets",),
    "C064": ("policy/test_grouping.py::test_c064_range_beyond_half",),
    "C065": (
        "cleaning/test_merge.py::test_c065_empty_segments_are_merged_away",
        "policy/test_grouping.py::test_c065_empty_segments_can_be_merged_away",
        "policy/test_merging.py::test_which_segments_become_one",
    ),
    "C066": ("storage/test_commit.py::test_later_group_is_committed_when_retention_took_the_group_before",),
    "C067": ("kernels/test_cases_cleaning.py::test_c067_c068_a_record_larger_than_any_buffer",),
    "C068": ("kernels/test_cases_cleaning.py::test_c067_c068_a_record_larger_than_any_buffer",),
    "C069": ("kernels/test_cases_cleaning.py::test_c069_c070_a_damaged_batch_fails_the_cleaning",),
    "C070": ("kernels/test_cases_cleaning.py::test_c069_c070_a_damaged_batch_fails_the_cleaning",),
    "C071": ("kernels/test_cases_encoding.py::test_c071_magic_0_messages_in_magic_1_wrappers",),
    "C072": ("cleaning/test_overflowed_segment.py::test_c072_an_overflowed_segment_is_not_written_again",),
    "C073": ("kernels/test_cases_transactions.py::test_c073_duplicate_check_after_cleaning",),
    "C074": ("kernels/test_cases_transactions.py::test_c074_producer_last_sequence_retained",),
    "C075": ("kernels/test_cases_transactions.py::test_c075_last_sequence_retained_even_if_aborted",),
    "C076": ("kernels/test_cases_transactions.py::test_c076_basic_transaction_aware_cleaning",),
    "C077": (
        "tools/client/test_writer.py::test_c077_transaction_index",
        "kernels/test_cases_transactions.py::test_c077_multi_pass_with_aborted_transactions",
    ),
    "C078": ("kernels/test_cases_transactions.py::test_c078_transactions_spanning_segments",),
    "C079": ("kernels/test_cases_transactions.py::test_c079_commit_marker_removal",),
    "C080": ("kernels/test_cases_transactions.py::test_c080_batches_deleted_unread",),
    "C081": ("kernels/test_cases_transactions.py::test_c081_commit_marker_retention_with_empty_batch",),
    "C082": ("kernels/test_cases_transactions.py::test_c082_empty_control_batch",),
    "C083": ("kernels/test_cases_transactions.py::test_c083_committed_transaction_spanning_segments",),
    "C084": ("kernels/test_cases_transactions.py::test_c084_aborted_transaction_spanning_segments",),
    "C085": ("kernels/test_cases_transactions.py::test_c085_abort_marker_removal",),
    "C086": ("kernels/test_cases_transactions.py::test_c086_sequence_reuse",),
    "C087": ("kernels/test_cases_transactions.py::test_c087_abort_marker_retention_with_empty_batch",),
    "C088": ("kernels/test_cases_transactions.py::test_c088_keys_like_marker_keys",),
    "C089": ("kernels/test_cases_transactions.py::test_c089_c090_sequence_of_a_compacted_batch",),
    "C090": (
        "tools/client/test_writer.py::test_empty_batches_count_for_the_producer_case_c090",
        "kernels/test_cases_transactions.py::test_c089_c090_sequence_of_a_compacted_batch",
    ),
    "C091": ("kernels/test_cases_encoding.py::test_c091_partition_leader_epoch",),
    "C092": (
        "format/test_batch.py::test_empty_batch_keeps_producer_and_kind_rule_4_30",
        "kernels/test_cases_encoding.py::test_c092_empty_batch_retention",
    ),
    "C093": ("kernels/test_cases_encoding.py::test_c093_c094_empty_batches",),
    "C094": ("kernels/test_cases_encoding.py::test_c093_c094_empty_batches",),
    "C095": ("kernels/test_cases_encoding.py::test_c095_base_timestamp_becomes_delete_horizon",),
    "C096": ("kernels/test_cases_encoding.py::test_c096_whole_batches_discarded",),
    "C097": ("kernels/test_cases_encoding.py::test_c097_already_compacted",),
    "C098": ("kernels/test_cases_encoding.py::test_c098_producer_info",),
    "C100": (
        "kernels/test_cases_encoding.py::test_c100_filter_to_batches",
        "kernels/test_cases_encoding.py::test_c100_filter_to_legacy",
    ),
    "C101": (
        "kernels/test_cases_encoding.py::test_c101_log_append_time",
        "kernels/test_cases_encoding.py::test_c101_log_append_time_legacy",
    ),
    "C102": (
        "format/test_batch.py::test_c102_sizes_and_magics_that_cannot_be",
        "kernels/test_scan.py::test_c102_next_batch_size",
    ),
    "C103": (
        "format/test_batch.py::test_c103_checksum",
        "format/test_legacy.py::test_c103_checksum",
        "kernels/test_scan.py::test_c103_checksum",
    ),
    "C104": ("kernels/test_cases_cleaning.py::test_c104_every_codec",),
    "C105": ("kernels/test_cases_cleaning.py::test_c105_c106_legacy_formats_and_nested_messages",),
    "C106": ("kernels/test_cases_cleaning.py::test_c105_c106_legacy_formats_and_nested_messages",),
    "C107": (
        "storage/test_recover.py::test_c107_recovery_after_crash_where_no_broker_will_start",
        "storage/test_recover.py::test_leftovers_of_a_broker_are_left_to_it",
        "storage/test_recover.py::test_stale_cleaned_file_does_not_cost_an_interrupted_swap",
    ),
    "C115": ("daemon/test_deletions.py::test_5_10_leftovers_are_due_at_once",),
    "C118": ("storage/test_commit.py::test_commit_leaves_the_new_log_and_nothing_else",),
    "C119": (
        "cleaning/test_retain.py::test_5_8_the_daemon_deletes_later",
        "daemon/test_deletions.py::test_5_8_nothing_goes_before_its_time",
    ),
    "C120": (
        "cleaning/test_retain.py::test_5_8_the_daemon_deletes_later",
        "daemon/test_deletions.py::test_5_8_nothing_goes_before_its_time",
    ),
    "C121": (
        "tools/client/test_delete_log.py::test_5_23_renamed_whole_and_forgotten",
        "daemon/test_deletions.py::test_a_5_deleted_log_goes_after_its_delay",
    ),
    "C124": (
        "cleaning/test_retain.py::test_c124_high_watermark_and_epochs",
        "policy/test_retention.py::test_c124_high_watermark_limits_retention",
        "policy/test_retention.py::test_c124_c136_leader_epochs_are_trimmed_from_the_start",
    ),
    "C125": ("policy/test_retention.py::test_c125_segments_at_or_above_the_high_watermark",),
    "C126": ("cleaning/test_delete_records.py::test_c126_not_past_the_high_watermark",),
    "C127": (
        "cleaning/test_delete_records.py::test_c127_delete_records",
        "policy/test_retention.py::test_c127_delete_records",
    ),
    "C128": ("policy/test_retention.py::test_c128_size",),
    "C129": ("policy/test_retention.py::test_c129_time",),
    "C130": ("policy/test_retention.py::test_c130_c131_policy",),
    "C131": ("policy/test_retention.py::test_c130_c131_policy",),
    "C132": (
        "cleaning/test_retain.py::test_c132_d17_d19_the_log_start_counts_under_any_policy",
        "policy/test_retention.py::test_c132_d17_log_start_without_delete",
    ),
    "C133": ("policy/test_retention.py::test_c133_idempotent",),
    "C134": (
        "cleaning/test_retain.py::test_c134_producer_snapshots_go_with_their_segments",
        "cleaning/test_retain.py::test_c134_a_moved_log_start_takes_snapshots_along",
        "policy/test_retention.py::test_c134_retention_bytes_zero",
    ),
    "C135": ("policy/test_retention.py::test_c135_deletable_segments",),
    "C136": (
        "cleaning/test_retain.py::test_c136_leader_epochs",
        "policy/test_retention.py::test_c124_c136_leader_epochs_are_trimmed_from_the_start",
    ),
    "C137": ("cleaning/test_retain.py::test_c137_producers_outlive_their_segments",),
    "C138": (
        "cleaning/test_retain.py::test_c138_expired_segments",
        "daemon/test_deletions.py::test_c138_files_of_expired_segments_go_after_the_delay",
    ),
    "C139": ("policy/test_retention.py::test_c139_size_of_twenty_segments",),
    "C140": ("daemon/test_retention.py::test_c140_1_31_without_a_cleaner_compacted_logs_get_no_retention",),
    "C141": (
        "cleaning/test_retain.py::test_c141_the_entry_of_the_log_start_goes_when_the_first_segment_says_it",
        "policy/test_retention.py::test_c141_log_start_inside_the_log",
    ),
    "C142": (
        "cleaning/test_retain.py::test_c142_everything_of_a_compacted_and_expired_log_goes",
        "policy/test_retention.py::test_c142_everything_expired",
    ),
    "C143": (
        "daemon/test_supervisor.py::test_c143_uncleanable_logs_are_out_of_the_way_and_counted_until_they_vanish",
    ),
    "C144": ("cleaning/test_choose.py::test_c144_max_lag_cleans_what_the_ratio_would_not",),
    "C145": ("cleaning/test_choose.py::test_c145_min_lag_protects_what_is_younger",),
    "C146": ("daemon/test_workers.py::test_c146_a_thread_that_dies_is_counted_and_started_again",),
    "C147": (
        "config/test_reload.py::test_c147_buffer_and_threads_are_reconfigured_together",
        "daemon/test_at_work.py::test_limits_and_threads_change_while_it_works",
        "daemon/test_workers.py::test_c147_number_of_threads_follows_the_configuration",
    ),
    "C148": (
        "cleaning/test_throttle.py::test_c148_a_new_rate_holds_for_those_who_wait",
        "config/test_reload.py::test_c148_a_changed_rate_reaches_the_throttle",
        "daemon/test_at_work.py::test_limits_and_threads_change_while_it_works",
    ),
    "C149": ("operate/test_metrics.py::test_counters_outlive_a_reload_that_changes_the_number_of_threads",),
    "C150": (
        "config/test_load.py::test_topic_override_survives_broker_default_changes",
        "config/test_reload.py::test_c150_all_seven_keys_apply_together",
        "config/test_reload.py::test_c150_any_one_of_the_seven_starts_the_workers_anew",
        "config/test_reload.py::test_c150_consecutive_changes_keep_topic_overrides",
        "daemon/test_workers.py::test_c150_a_change_of_the_configuration_revives_dead_threads",
        "daemon/test_at_work.py::test_limits_and_threads_change_while_it_works",
    ),
    "C151": (
        "cleaning/test_throttle.py::test_c151_desired_rate",
        "cleaning/test_throttle.py::test_c151_update_of_the_desired_rate",
    ),
    "C152": (
        "config/test_load.py::test_c152_invalid_compaction_lag",
        "config/test_load.py::test_c152_from_props_invalid",
    ),
    "C153": (
        "config/test_load.py::test_c153_log_retention_time",
        "config/test_load.py::test_c153_log_retention_of_zero_is_rejected",
    ),
    "C154": (
        "config/test_reload.py::test_c154_static_keys_refuse_the_whole_update_by_name",
        "config/test_reload.py::test_c154_every_static_key_is_refused",
        "daemon/test_reload.py::test_c154_one_bad_key_refuses_the_whole_update",
        "daemon/test_reload.py::test_c154_a_refused_thread_count_refuses_the_whole_update",
    ),
    "C155": ("daemon/test_at_work.py::test_c155_a_log_that_is_deleted_while_it_is_cleaned_is_forgotten",),
    "C156": ("daemon/test_soak.py::test_nothing_is_lost_whatever_happens",),
    "D01": (
        "daemon/test_due_logs.py::test_d01_overdue_logs_go_first_and_the_earliest_deadline_before_all",
        "policy/test_cleanable.py::test_d01_overdue_logs_go_first",
    ),
    "D02": (
        "daemon/test_due_logs.py::test_d02_d03_ratio_must_be_above_the_threshold",
        "policy/test_cleanable.py::test_d02_d03_threshold",
    ),
    "D03": (
        "daemon/test_due_logs.py::test_d02_d03_ratio_must_be_above_the_threshold",
        "policy/test_cleanable.py::test_d02_d03_threshold",
    ),
    "D04": (
        "daemon/test_due_logs.py::test_c025_min_lag_makes_a_log_due_by_the_mere_passing_of_time",
        "policy/test_cleanable.py::test_d04_min_lag_is_strict",
    ),
    "D05": (
        "daemon/test_due_logs.py::test_d05_first_batches_without_a_time_are_never_overdue",
        "policy/test_cleanable.py::test_d05_compaction_delay",
    ),
    "D07": ("kernels/test_cases_cleaning.py::test_d07_tombstone_kept_until_its_horizon",),
    "D08": ("kernels/test_cases_encoding.py::test_d08_middle_record_obsolete",),
    "D09": ("kernels/test_cases_encoding.py::test_d09_wrong_crc_is_refused",),
    "D10": ("kernels/test_cases_encoding.py::test_d10_batch_with_a_horizon_is_copied",),
    "D12": (
        "daemon/test_states.py::test_d12_a_second_aborter_does_not_stack",
        "daemon/test_states.py::test_a_client_that_comes_back_takes_the_abort_over",
    ),
    "D13": ("daemon/test_states.py::test_d13_resume_of_a_log_in_progress",),
    "D14": ("daemon/test_at_work.py::test_d14_log_dir_that_fails_is_offline_alone_and_comes_back",),
    "D15": (
        "cleaning/test_bad_input.py::test_damaged_logs_do_not_keep_others_from_being_cleaned",
        "kernels/test_cases_encoding.py::test_d15_index_lookups",
    ),
    "D16": (
        "daemon/test_process.py::test_dirty_logs_are_cleaned_in_one_job_and_nothing_is_left_over",
        "storage/test_assemble.py::test_4_12_all_files_have_the_time_of_the_last_source",
    ),
    "D17": (
        "cleaning/test_retain.py::test_c132_d17_d19_the_log_start_counts_under_any_policy",
        "policy/test_retention.py::test_c132_d17_log_start_without_delete",
    ),
    "D18": ("kernels/test_cases_transactions.py::test_d18_producer_whose_last_batch_is_active",),
    "D19": (
        "cleaning/test_retain.py::test_c132_d17_d19_the_log_start_counts_under_any_policy",
        "config/test_load.py::test_d19_policies",
        "policy/test_retention.py::test_d19_no_policy_at_all",
    ),
    "D20": (
        "config/test_reload.py::test_d20_thread_count_at_most_doubles_and_at_least_halves",
        "config/test_reload.py::test_d20_any_two_counts",
        "config/test_reload.py::test_d20_is_for_numbers_that_somebody_chose",
        "config/test_reload.py::test_d20_counts_that_the_cluster_accepted_are_adopted",
    ),
}

NOT_APPLICABLE: dict[str, str] = {
    "C003": "the set of keys is as large as the round needs: it is never full, and a round always reaches its bound",
    "C004": "the set of keys knows no latest offset: a round ends at its bound",
    "C005": "the set of keys knows no latest offset: a round ends at its bound",
    "C006": "the set of keys is made for the keys of the round and has no utilization",
    "C008": "the set of keys is as large as the round needs: it is never full, and a round always reaches its bound",
    "C055": "the set of keys is as large as the round needs: it is never full, and a round always reaches its bound",
    "C060": "new segments are written at their size, never preallocated; preallocate has no effect",
    "C099": "there are no output buffers that could be too small: a rebuilt batch is made as large as it is",
    "C108": "cleanerd splits no segment: an overflowed one fails its log with file, offset and remedy (C072)",
    "C109": "cleanerd splits no segment: an overflowed one fails its log with file, offset and remedy (C072)",
    "C110": "cleanerd splits no segment: an overflowed one fails its log with file, offset and remedy (C072)",
    "C111": "cleanerd splits no segment: an overflowed one fails its log with file, offset and remedy (C072)",
    "C112": "cleanerd splits no segment: an overflowed one fails its log with file, offset and remedy (C072)",
    "C113": "an offset beyond the reach of its segment is found before anything is written (C072)",
    "C114": "no segment is filled from another one: only a split needs that (C108)",
    "C116": "loading a log is its broker's; an index without a .log belongs to no segment, and nobody reads it",
    "C117": "loading a log is its broker's, and so are its stray snapshots",
    "C122": "recovering a segment is its broker's; what was recovered or not is not cleaned (spec disk G)",
    "C123": "a cleaning takes the aborted transactions of the whole log at once (4.22): there is no query by range",
    "D06": "the set of keys is as large as the round needs: it is never full, and a round always reaches its bound",
    "D11": "a round always covers whole segments (1.13): there is no partially mapped one",
}
