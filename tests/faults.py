"""What can fail around cleanerd, and the tests that make it fail. `tests/test_cases.py` looks up every test.

Most run a real daemon or a real `cleanerd clean` and need the switches `--soak` or `--broker`.
"""

FAULTS: dict[str, tuple[str, ...]] = {
    "no room before a write": (
        "cleaning/test_bad_input.py::test_read_only_directory_and_one_without_room",
        "cleaning/test_reservations.py::test_a_write_that_would_cross_the_floor_fails_its_log_alone",
    ),
    "ENOSPC, EIO, EACCES, EROFS from a system call": (
        "daemon/test_faults.py::test_a_failing_call_is_the_trouble_of_its_log_and_passes",
        "cleaning/test_bad_input.py::test_errors_while_staging_leave_the_log_as_it_was",
        "cleaning/test_bad_input.py::test_errors_in_the_middle_of_a_commit_are_mended_by_the_next_run",
    ),
    "a disk that fills up in the middle of a write": (
        "broker/test_no_room.py::test_a_directory_that_fills_up_in_mid_write_costs_its_log_the_cleaning_and_the_broker_nothing",
        "daemon/test_at_work.py::test_a_log_without_room_for_all_its_groups_is_committed_group_by_group",
    ),
    "a file system that becomes read-only": (
        "daemon/test_faults.py::test_an_error_of_the_file_system_harms_only_its_directory",
        "spark_runtime/test_place.py::test_a_file_that_cannot_be_made_stops_all_parts",
    ),
    "a slow disk": ("daemon/test_faults.py::test_a_slow_disk_costs_time_only",),
    "a log directory that goes away": (
        "daemon/test_at_work.py::test_d14_log_dir_that_fails_is_offline_alone_and_comes_back",
    ),
    "calls, file systems and processes that a host refuses": (
        "operate/test_refusals.py::test_calls_that_old_kernels_and_sandboxes_refuse_are_not_needed",
        "operate/test_refusals.py::test_what_a_command_needs_and_does_not_get_is_a_line",
        "operate/test_refusals.py::test_a_cleaning_works_without_or_says_what_is_short",
        "operate/test_refusals.py::test_in_a_container_that_lacks_a_file_system",
    ),
    "a limit on the size of files": (
        "daemon/test_faults.py::test_a_limit_on_the_size_of_files_fails_the_log_that_needs_more",
    ),
    "descriptors run out": ("spark_runtime/test_channel.py::test_it_goes_on_when_descriptors_were_short",),
    "the history cannot be written": ("daemon/test_store.py::test_a_full_disk_costs_the_row_only",),
    "the JVM or the engine is killed": (
        "daemon/test_process.py::test_killed_jvm_costs_a_retry_and_a_killed_engine_too",
        "pipeline/test_job.py::test_the_death_of_the_jvm_costs_one_retry",
    ),
    "the JVM hangs": (
        "daemon/test_at_work.py::test_healthz_tells_of_an_engine_that_stalls_until_a_cleaning_comes_through",
        "spark_runtime/test_lazy_spark.py::test_a_jvm_that_hangs_at_its_start_is_killed",
    ),
    "Python workers are killed": ("daemon/test_faults.py::test_killed_python_workers_cost_a_retry",),
    "an executor of a cluster is lost": (
        "daemon/test_faults.py::test_an_executor_that_is_lost_in_the_middle_of_a_rewrite_costs_a_retry",
    ),
    "a process that dies whenever it sees one log": (
        "daemon/test_faults.py::test_logs_of_a_job_whose_engine_died_are_tried_one_by_one",
    ),
    "the daemon is killed": (
        "daemon/test_at_work.py::test_kill_in_the_middle_leaves_an_engine_that_ends_and_a_log_that_the_next_start_cleans",
        "storage/test_kill9.py::test_commits_killed_before_every_operation_and_at_random_moments",
        "storage/test_kill9.py::test_whole_runs_of_cleanerd_clean_killed_with_spark_and_all",
        "daemon/test_soak.py::test_nothing_is_lost_whatever_happens",
    ),
    "the power fails": (
        "daemon/test_ends.py::test_the_power_fails_at_any_moment_of_a_daemon",
        "proofs/test_power_cut.py::test_commits_and_recoveries_cut_before_every_operation",
        "proofs/test_power_cut.py::test_other_protocols_cut_before_every_operation",
        "storage/test_delete.py::test_power_cut_anywhere_leaves_the_end_of_the_log",
        "storage/test_roll.py::test_a_roll_killed_anywhere_and_done_again_survives_a_power_cut_anywhere",
    ),
    "the broker runs out of memory": (
        "broker_agent/test_out_of_memory.py::test_nothing_is_begun_without_memory",
    ),
    "the broker is killed": (
        "broker/test_start_beside_commits.py::test_a_killed_broker_starts_again_whatever_is_being_committed",
        "broker/test_live_broker.py::test_a_killed_broker_finds_its_logs_in_order",
    ),
    "SIGTERM and SIGINT at any moment": (
        "daemon/test_ends.py::test_a_daemon_that_is_asked_to_end_at_any_moment_loses_nothing",
        "daemon/test_ends.py::test_a_daemon_that_is_asked_to_end_in_the_middle_of_a_commit",
        "daemon/test_faults.py::test_a_run_that_is_asked_to_end_at_any_moment_loses_nothing",
    ),
    "a client that is slow, or vanishes": (
        "daemon/test_service.py::test_slow_client_is_cut_off_in_total",
        "daemon/test_service.py::test_a_client_that_vanishes_costs_nothing",
        "daemon/test_faults.py::test_clients_that_are_killed_while_they_wait_cost_nothing",
        "daemon/test_states.py::test_a_client_that_comes_back_takes_the_abort_over",
    ),
    "a wall clock that jumps": (
        "daemon/test_faults.py::test_a_wall_clock_that_jumps_both_ways_loses_nothing",
        "daemon/test_due_logs.py::test_clock_that_goes_back_is_believed",
    ),
    "several daemons and one-shots at once": (
        "daemon/test_several.py::test_of_three_daemons_that_start_at_once_one_works",
        "daemon/test_several.py::test_a_one_shot_beside_a_daemon_is_refused_and_disturbs_nothing",
        "cleaning/test_bad_input.py::test_second_cleanerd_in_the_same_directory",
    ),
    "files that change or grow while they are read": (
        "cleaning/test_changed_while_read.py::test_a_segment_swapped_between_its_log_and_its_index",
        "broker/test_both_cleaners.py::test_a_one_shot_beside_the_brokers_cleaner_ends_well",
        "broker/test_live_broker.py::test_producers_write_over_three_restarts",
        "broker/test_verify.py::test_a_live_broker_that_writes_rolls_and_deletes",
        "daemon/test_soak.py::test_nothing_is_lost_whatever_happens",
    ),
    "no HOME, and a cache that cannot be written": (
        "daemon/test_faults.py::test_a_daemon_without_home_and_with_a_cache_that_cannot_be_written",
        "kernels/test_compiled.py::test_without_a_writable_directory_it_is_a_temporary_one",
    ),
}
