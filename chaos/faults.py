"""The consequences of each fault, and where they are tested: the texts of `docs/reliability.md`."""

from __future__ import annotations

from typing import NamedTuple

from fedalloy.errors import (
    CheckpointError,
    DataError,
    HangupError,
    InterruptionError,
    SecurityError,
    StorageError,
    TerminationError,
    UsageError,
)
from fedalloy.federation.quorum import QuorumError


class Fault(NamedTuple):
    """A fault, its consequence, and the tests and programs that check it."""

    what: str
    then: str
    seen: tuple[str, ...]


def code(*kinds: type[Exception]) -> str:
    """Return the exit statuses of errors as text."""
    return " or ".join(f"status {kind.code}" for kind in kinds)  # type: ignore[attr-defined]  # all of them have one


SAFETY, STORE, POOL = "tests/test_crash_safety.py", "tests/test_store.py", "tests/engine/test_pool.py"
QUORUM, NOTHING, DEPLOY = "tests/test_quorum.py", "tests/test_nothing_executable.py", "tests/deploy/test_control.py"
FLOWER, CHECK = "tests/flower/test_faults.py", "tests/test_check.py"
IDENTITY = "tests/deploy/test_identity.py"

FAULTS: dict[str, list[Fault]] = {
    "Processes": [
        Fault(
            "The run is killed at any moment",
            "The same command, or `fedalloy resume RUN`, resumes it and ends with the same bits; at most one round is "
            "lost.",
            ("chaos/kills.py", "chaos/commits.py", f"{SAFETY}::test_a_fault_at_any_call_of_a_run_loses_nothing"),
        ),
        Fault(
            "It is killed again after it was resumed",
            "The same.",
            ("chaos/kills.py", "chaos/commits.py", f"{SAFETY}::test_a_fault_at_any_call_of_a_resumption_loses_nothing"),
        ),
        Fault(
            "Ctrl-C, SIGTERM, a closed terminal, or several of them in quick succession",
            f"It exits immediately with {code(InterruptionError, TerminationError, HangupError)}, leaves no worker "
            "behind, "
            "and says how to resume.",
            (f"{SAFETY}::test_a_signal_ends_a_run_at_once_and_it_goes_on",),
        ),
        Fault(
            "A worker is killed",
            "A new worker runs the same client again, with the same bits; a client that kills its worker twice counts "
            "as "
            "absent.",
            (
                "chaos/kills.py",
                f"{POOL}::test_a_killed_worker_costs_one_retry_and_no_bit",
                f"{QUORUM}::test_the_pool_goes_on_without_a_client_that_hangs_or_kills",
            ),
        ),
        Fault(
            "The process that started workers is killed",
            "The workers end with it, and none of the clients' data stays in shared memory.",
            (
                "chaos/kills.py",
                f"{POOL}::test_workers_die_with_their_parent",
                f"{POOL}::test_workers_whose_parent_dies_while_they_import_torch_end_at_once",
                f"{POOL}::test_a_pool_that_is_killed_leaves_no_data_in_shared_memory",
            ),
        ),
        Fault(
            "Two processes try to write the same run",
            f"One succeeds; the other is refused with {code(UsageError)}. A lock left by a killed process does not "
            "block anyone.",
            (
                f"{SAFETY}::test_one_process_writes_and_a_killed_one_locks_nobody_out",
                f"{SAFETY}::test_a_lock_has_one_holder_whoever_takes_and_releases_it",
            ),
        ),
        Fault(
            "A different number of workers, order of arrival or Python hash seed",
            "The same bits.",
            ("chaos/exactness.py", f"{POOL}::test_pool_and_threads_equal_serial_bit_for_bit"),
        ),
    ],
    "Disks": [
        Fault(
            "A write fails or the disk is full, at any write",
            f"The run exits with {code(StorageError)}; once there is space it can be resumed and ends with the same "
            "bits.",
            ("chaos/commits.py", f"{SAFETY}::test_a_fault_at_any_call_of_a_run_loses_nothing"),
        ),
        Fault(
            "A power failure",
            "Files are synced before they are renamed, and folders after: a completed round is on the disk. This was "
            "not "
            "tested with a real power cut.",
            (f"{STORE}::test_a_file_is_replaced_at_once_and_synced",),
        ),
        Fault(
            "A folder that cannot be written",
            f"Refused with {code(StorageError)} before the first round.",
            (f"{STORE}::test_a_place_below_a_file_cannot_be_written",),
        ),
        Fault(
            "The newest checkpoint is damaged, truncated, lost or swapped",
            "It is set aside, with a message, and the previous generation leads to the same bits.",
            (
                "chaos/checkpoints.py",
                f"{SAFETY}::test_damage_costs_one_generation",
                f"{SAFETY}::test_any_one_file_may_be_damaged",
            ),
        ),
        Fault(
            "All checkpoints are damaged",
            f"Refused with {code(CheckpointError)}, and nothing is changed; a run never starts over by itself.",
            (
                "chaos/checkpoints.py",
                f"{SAFETY}::test_damage_to_both_generations_is_refused_and_nothing_is_touched",
                f"{SAFETY}::test_no_checkpoint_at_all_is_no_reason_to_begin_anew",
            ),
        ),
        Fault(
            "The description of a run is lost, truncated or overwritten",
            "Its copy next to the checkpoints is used instead, with a message.",
            (f"{SAFETY}::test_a_description_that_is_lost_or_damaged_is_taken_from_its_copy",),
        ),
        Fault(
            "Experiment, data, versions or plug-ins have changed since the run began",
            f"Refused with {code(CheckpointError)}, naming what differs.",
            (
                f"{SAFETY}::test_all_that_has_changed_since_is_said",
                f"{SAFETY}::test_run_refuses_the_folder_of_another_experiment",
            ),
        ),
        Fault(
            "Links in a run's folder that point elsewhere",
            f"Nothing is written through them; {code(SecurityError)}.",
            (f"{SAFETY}::test_a_run_writes_through_no_link", f"{NOTHING}::test_links_in_a_run_lead_no_write_out_of_it"),
        ),
    ],
    "Clients": [
        Fault(
            "A reply with NaN, infinity, or wrong shapes, types or names, or that is something else entirely",
            "It is set aside with a reason, and the round is the same as without that client.",
            ("chaos/replies.py", "tests/test_gate.py::test_a_refused_client_might_as_well_have_been_absent"),
        ),
        Fault(
            "Impossible sample counts, class counts or probabilities",
            "The same. In a simulation, a client's number of samples comes from the roster; at sites it is what the "
            "site "
            "said first, up to most_samples.",
            ("chaos/replies.py",),
        ),
        Fault(
            "Replies so large or so numerous that they would fill the memory",
            "They are set aside by their size and header, before they are read completely.",
            ("chaos/replies.py", "chaos/memory.py"),
        ),
        Fault(
            "A duplicate reply, one from an unknown client, or one that nobody asked for",
            "The first counts; the others are set aside.",
            ("chaos/replies.py", f"{FLOWER}::test_an_answer_to_another_message_is_ignored"),
        ),
        Fault(
            "Replies are lost, even all of a round",
            "A lost reply does not count: the server's state is as if that client had not taken part.",
            (f"{CHECK}::test_registering_a_method_is_being_tested",),
        ),
        Fault(
            "Fewer clients answer than the quorum",
            f"The round is recorded as skipped and changes nothing; after several in a row the run exits with "
            f"{code(QuorumError)}, and can be resumed.",
            (
                f"{QUORUM}::test_a_round_below_quorum_leaves_everything_as_it_was",
                f"{QUORUM}::test_a_run_gives_up_after_several_rounds_and_can_be_resumed",
            ),
        ),
        Fault(
            "The server's own numbers overflow although all replies are finite",
            "The round is recorded as skipped and changes nothing, like a round below the quorum.",
            (
                f"{QUORUM}::test_a_round_after_which_the_server_is_not_finite_leaves_everything_as_it_was",
                f"{QUORUM}::test_a_hostile_reply_of_huge_numbers_never_stays",
            ),
        ),
        Fault(
            "Finite poison: negative variances, impossible counters, networks far from what was sent or from the "
            "others",
            "It is set aside with a reason, and the round is the same as without that client.",
            (
                "chaos/replies.py",
                "tests/test_poison.py::test_finite_poison_is_refused_and_the_run_is_as_without_that_reply",
            ),
        ),
        Fault(
            "A model that clients cannot train, whatever the cause",
            "The run goes back to the newest state that clients could train and says so, with the same bits if it is "
            "killed and resumed.",
            (
                "tests/test_rollback.py::test_poison_that_no_gate_knows_costs_two_rounds_and_not_the_run",
                "tests/test_rollback.py::test_a_run_that_goes_back_can_be_killed_at_any_call",
            ),
        ),
        Fault(
            "A client that reports more samples than it has",
            "With `aggregation.cap`, which `fedalloy deploy init` sets, its share of the weight is at most the cap.",
            (
                "tests/test_cap.py::test_a_client_that_claims_a_million_samples_has_at_most_its_cap_of_every_model",
                "tests/deploy/test_init.py::test_one_site_s_weight_is_capped_unless_the_experiment_says_otherwise",
            ),
        ),
        Fault(
            "A client that hangs",
            "With `quorum.deadline` it counts as absent, and its worker is replaced; without a deadline the run waits "
            "for it.",
            (f"{QUORUM}::test_the_pool_goes_on_without_a_client_that_hangs_or_kills",),
        ),
        Fault(
            "A client's code raises an error",
            "In a simulation the run ends with an error that names client and action, since the method is at fault; "
            "in a "
            "deployment the site counts as absent.",
            (
                f"{POOL}::test_a_failing_client_is_told_with_its_place",
                f"{FLOWER}::test_an_action_that_raises_or_returns_nothing_is_a_sentence",
            ),
        ),
        Fault(
            "A batch or a client of one sample, with BatchNorm",
            "Training works.",
            ("tests/test_training.py::test_no_size_breaks_batch_norm",),
        ),
        Fault(
            "The privacy that a client has spent, if the run is killed",
            "It is never less than the cost of the work that it released. In a simulation it is the same as in a run "
            "that "
            "was not killed; clients on Flower, which keep their own ledgers, also pay for the work that died.",
            (
                "chaos/kills.py",
                "tests/test_privacy_kills.py::test_no_kill_makes_a_client_forget_what_it_has_spent",
                "tests/test_privacy_kills.py::test_a_process_that_is_killed_loses_nothing_of_the_account",
                "tests/flower/test_ledger.py::test_no_kill_leaves_a_step_unpaid",
            ),
        ),
        Fault(
            "A site's privacy ledger is damaged, or missing although the site has trained",
            "The site does not train, and says which file to restore.",
            ("tests/flower/test_ledger.py::test_a_ledger_that_is_lost_or_damaged_is_no_new_one",),
        ),
        Fault(
            "A server that subtracts from private replies all the noise that it can compute",
            "It learns no more than from fresh noise.",
            ("chaos/curious_server.py",),
        ),
    ],
    "Input": [
        Fault(
            "An experiment with unknown keys, wrong types, impossible values, or something that is not an experiment",
            f"Refused in one line with {code(UsageError)}: where, what, and what to write instead.",
            ("chaos/configs.py", "tests/test_config.py::test_what_is_wrong_is_said_in_one_sentence"),
        ),
        Fault(
            "An experiment that is accepted",
            "It works.",
            ("chaos/configs.py",),
        ),
        Fault(
            "A command line that is wrong in any way",
            "One line, and an exit status that says why.",
            ("chaos/commands.py", "tests/test_cli.py::test_bad_input_gets_one_sentence_and_leaves_nothing"),
        ),
        Fault(
            "Labels that are not classes, samples that are not numbers",
            f"Refused with {code(DataError)} when they are read.",
            (
                "tests/data/test_catalogue.py::test_a_wrong_data_set_is_refused",
                "tests/data/test_catalogue.py::test_wrong_arrays_are_refused",
            ),
        ),
        Fault(
            "Damaged data, weights, records or descriptions of runs",
            f"Refused in one line with {code(DataError)}, or read correctly.",
            ("chaos/files.py", "tests/data/test_fetch.py::test_a_corrupt_file_names_itself_both_hashes_and_the_remedy"),
        ),
        Fault(
            "A run folder with arbitrary contents from a third party",
            f"Refused in one line with {code(DataError)} that names the file and the key, or its report is correct.",
            (
                "chaos/run_folders.py",
                "tests/test_run_files.py::test_what_cannot_be_reported_is_refused_with_its_file_and_key",
            ),
        ),
        Fault(
            "A site's own file is damaged, or does not contain what was agreed on",
            f"`start.sh` says so in one line, with the line and column, the row or the image, and {code(DataError)}.",
            (
                "chaos/site_files.py",
                "tests/deploy/test_site_data.py::test_a_csv_file_is_refused_with_the_place_of_what_is_wrong",
            ),
        ),
        Fault(
            "Labels that do not start at zero or have gaps, token ids as features",
            f"Refused with {code(DataError)} and a message with what was found and what to write.",
            (
                "tests/data/test_arrays.py::test_labels_that_start_late_or_have_gaps_are_a_sentence",
                "tests/data/test_arrays.py::test_token_ids_are_not_taken_for_quantities",
            ),
        ),
        Fault(
            "A download that fails, is truncated or has the wrong content",
            f"Refused with {code(DataError)}; nothing is left behind.",
            ("tests/data/test_fetch.py::test_a_failed_download_is_one_sentence_and_leaves_nothing",),
        ),
        Fault(
            "A file that would execute code when it is read",
            "It is not executed: nothing on disk or on the wire is unpickled, imported or evaluated. A file that "
            "begins "
            f"like a pickle is refused with {code(SecurityError)}; as a checkpoint it is skipped if another one is "
            "intact.",
            (
                f"{NOTHING}::test_what_would_execute_something_is_refused_by_its_first_bytes",
                f"{NOTHING}::test_every_use_that_could_execute_is_allowed_and_needed",
                f"{NOTHING}::test_a_session_executes_nothing_that_it_reads",
            ),
        ),
        Fault(
            "Names that are paths, modules or commands",
            "A name only selects among registered entries; folder names are sanitised.",
            (
                f"{NOTHING}::test_an_experiment_names_what_is_registered_and_nothing_else",
                f"{NOTHING}::test_a_folders_name_is_harmless_whatever_the_label",
            ),
        ),
        Fault(
            "Other users on the same machine",
            "Only the owner can read a run's folder and files.",
            (f"{STORE}::test_what_a_store_writes_is_for_its_owner_alone",),
        ),
    ],
    "Deployments": [
        Fault(
            "The server's run is interrupted",
            "It resumes from its own checkpoint and ends with the model of a simulation.",
            ("tests/deploy/test_app.py::test_a_run_that_was_cut_off_goes_on_to_the_same_model",),
        ),
        Fault(
            "A site is offline, or comes back with another node id",
            "The server waits for it, then counts it as absent; when it is back, it is identified by its key.",
            (
                f"{FLOWER}::test_a_node_that_stays_away_is_absent",
                f"{FLOWER}::test_a_node_that_comes_back_with_another_id_is_found_again",
            ),
        ),
        Fault(
            "A site claims to be another one, at the start or when a run is resumed",
            "Its key identifies it: it is left out, with both numbers. A node without a registered key is ignored.",
            (
                f"{IDENTITY}::test_a_site_cannot_begin_a_run_as_another",
                f"{IDENTITY}::test_a_site_cannot_resume_a_run_as_another",
                f"{IDENTITY}::test_a_node_that_was_never_registered_is_ignored_and_said_once",
            ),
        ),
        Fault(
            "A site claims more samples than `most_samples` allows, or different sizes or label counts than at the "
            "start",
            "It is left out, with both numbers; nothing is allocated based on its claims.",
            (
                f"{IDENTITY}::test_a_claim_beyond_the_limit_is_refused_with_both_numbers",
                f"{IDENTITY}::test_sizes_stay_what_they_were_when_the_run_began",
                f"{IDENTITY}::test_label_counts_are_those_of_the_introduction",
            ),
        ),
        Fault(
            "A site's account of its work, its privacy or its evaluation is impossible",
            "The reply is set aside immediately, and the run continues.",
            (
                f"{FLOWER}::test_a_bad_answer_costs_its_client_the_round_and_nobody_else",
                f"{FLOWER}::test_an_evaluation_that_cannot_be_is_left_out",
                f"{FLOWER}::test_a_client_that_is_there_but_does_not_match_is_not_waited_for",
            ),
        ),
        Fault(
            "A server with another authority, strangers at the server",
            "They are not trusted; strangers can only reach the interface where sites report.",
            (
                f"{DEPLOY}::test_a_link_of_another_authority_is_not_believed",
                f"{DEPLOY}::test_strangers_reach_the_fleet_alone",
            ),
        ),
        Fault(
            "Insecure defaults, secrets in the wrong hands",
            "`fedalloy deploy init` enables all protections; only the owner can read its keys.",
            (
                "tests/deploy/test_init.py::test_scripts_ask_for_everything_that_protects",
                "tests/deploy/test_init.py::test_only_the_owner_reads_secrets",
            ),
        ),
        Fault(
            "A server that asks a site for something it must not ask",
            "The site refuses.",
            (
                f"{FLOWER}::test_a_client_refuses_what_a_server_may_not_ask",
                f"{FLOWER}::test_a_server_cannot_reset_what_a_client_has_spent",
            ),
        ),
        Fault(
            "A server that asks a site to evaluate models of its own choice",
            "Under [privacy] the site evaluates nothing. Otherwise it refuses models that do not fit its method and "
            "rounds "
            "that cannot be in progress, answers for few models per round, and logs their digests.",
            (
                "chaos/oracle.py",
                "tests/deploy/test_oracle.py::test_with_privacy_a_site_evaluates_nothing",
                "tests/deploy/test_oracle.py::test_without_privacy_a_site_evaluates_few_models_of_a_round",
                "tests/deploy/test_oracle.py::test_a_site_refuses_models_that_its_method_cannot_have",
            ),
        ),
    ],
}

LIMITS = (
    "Equal bits are promised on the same kind of machine with the same versions; other versions are refused.",
    "Hashes find damage, not forgery: anyone who can write a run's folder can also write its hashes.",
    "A reply that satisfies the contract cannot be distinguished from an honest one; some [methods](methods.md) have "
    "options that limit such an attacker.",
    "Attackers do exactly what the table says: free riders echo exactly what they were sent, which is how Krum "
    "recognises "
    "them. With added noise, or an attack designed against the defence, less accuracy may be kept.",
    "A real power cut and network file systems were not tested.",
)
