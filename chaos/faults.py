"""What each fault leads to, and where that is tried: the sentences of `docs/reliability.md`, which `page.py` writes."""

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
    """Something that goes wrong, what happens then, and the tests and programs that have seen it happen."""

    what: str
    then: str
    seen: tuple[str, ...]


def code(*kinds: type[Exception]) -> str:
    """The exit codes of refusals, as a text."""
    return " or ".join(f"code {kind.code}" for kind in kinds)  # type: ignore[attr-defined]  # all of them have one


SAFETY, STORE, POOL = "tests/test_crash_safety.py", "tests/test_store.py", "tests/engine/test_pool.py"
QUORUM, NOTHING, DEPLOY = "tests/test_quorum.py", "tests/test_nothing_executable.py", "tests/deploy/test_control.py"
FLOWER, CHECK = "tests/flower/test_faults.py", "tests/test_check.py"
IDENTITY = "tests/deploy/test_identity.py"

FAULTS: dict[str, list[Fault]] = {
    "Processes": [
        Fault(
            "The run is killed at any moment",
            "The same command, or `fedalloy resume RUN`, goes on to the same bits; no more than a round is lost.",
            ("chaos/kills.py", "chaos/commits.py", f"{SAFETY}::test_a_fault_at_any_call_of_a_run_loses_nothing"),
        ),
        Fault(
            "It is killed again while it goes on",
            "The same.",
            ("chaos/kills.py", "chaos/commits.py", f"{SAFETY}::test_a_fault_at_any_call_of_a_resumption_loses_nothing"),
        ),
        Fault(
            "Ctrl-C, SIGTERM, a closed terminal, or some of them in haste",
            f"It ends with {code(InterruptionError, TerminationError, HangupError)} at once, leaves no worker, says "
            "how to go on.",
            (f"{SAFETY}::test_a_signal_ends_a_run_at_once_and_it_goes_on",),
        ),
        Fault(
            "A worker is killed",
            "A new one does the same client again, with the same bits; a client that takes its worker with it twice "
            "counts as absent.",
            (
                "chaos/kills.py",
                f"{POOL}::test_a_killed_worker_costs_one_retry_and_no_bit",
                f"{QUORUM}::test_the_pool_goes_on_without_a_client_that_hangs_or_kills",
            ),
        ),
        Fault(
            "The process that started workers is killed",
            "The workers end with it, and nothing of the clients' data stays in shared memory.",
            (
                "chaos/kills.py",
                f"{POOL}::test_workers_die_with_their_parent",
                f"{POOL}::test_workers_whose_parent_dies_while_they_import_torch_end_at_once",
                f"{POOL}::test_a_pool_that_is_killed_leaves_no_data_in_shared_memory",
            ),
        ),
        Fault(
            "Two processes want to write one run",
            f"One does; the other is refused with {code(UsageError)}. A lock left by a killed process stops nobody.",
            (
                f"{SAFETY}::test_one_process_writes_and_a_killed_one_locks_nobody_out",
                f"{SAFETY}::test_a_lock_has_one_holder_whoever_takes_and_releases_it",
            ),
        ),
        Fault(
            "Another number of workers, order of arrival or hash seed of Python",
            "The same bits.",
            ("chaos/exactness.py", f"{POOL}::test_pool_and_threads_equal_serial_bit_for_bit"),
        ),
    ],
    "Disks": [
        Fault(
            "A write fails or the disk is full, at any write",
            f"The run ends with {code(StorageError)}; once there is room it goes on to the same bits.",
            ("chaos/commits.py", f"{SAFETY}::test_a_fault_at_any_call_of_a_run_loses_nothing"),
        ),
        Fault(
            "The power fails",
            "Files are synced before they are renamed, and folders after: a completed round is on the disk. Nobody has "
            "pulled a plug.",
            (f"{STORE}::test_a_file_is_replaced_at_once_and_synced",),
        ),
        Fault(
            "A place that cannot be written",
            f"Refused with {code(StorageError)} before the first round.",
            (f"{STORE}::test_a_place_below_a_file_cannot_be_written",),
        ),
        Fault(
            "The newest checkpoint is damaged, cut, lost or mixed up",
            "It is set aside, said, and the generation before it leads to the same bits.",
            (
                "chaos/checkpoints.py",
                f"{SAFETY}::test_damage_costs_one_generation",
                f"{SAFETY}::test_any_one_file_may_be_damaged",
            ),
        ),
        Fault(
            "All checkpoints are",
            f"Refused with {code(CheckpointError)}, and nothing is touched; a run never begins anew by itself.",
            (
                "chaos/checkpoints.py",
                f"{SAFETY}::test_damage_to_both_generations_is_refused_and_nothing_is_touched",
                f"{SAFETY}::test_no_checkpoint_at_all_is_no_reason_to_begin_anew",
            ),
        ),
        Fault(
            "The description of a run is lost, cut off or overwritten",
            "Its copy beside the checkpoints takes its place, and that is said.",
            (f"{SAFETY}::test_a_description_that_is_lost_or_damaged_is_taken_from_its_copy",),
        ),
        Fault(
            "Experiment, data, versions or plug-ins have changed since",
            f"Refused with {code(CheckpointError)}, with what differs.",
            (
                f"{SAFETY}::test_all_that_has_changed_since_is_said",
                f"{SAFETY}::test_run_refuses_the_folder_of_another_experiment",
            ),
        ),
        Fault(
            "Links in a run's folder that lead elsewhere",
            f"Nothing is written through them; {code(SecurityError)}.",
            (f"{SAFETY}::test_a_run_writes_through_no_link", f"{NOTHING}::test_links_in_a_run_lead_no_write_out_of_it"),
        ),
    ],
    "Clients": [
        Fault(
            "A reply with NaN, infinity, another shape or type or other names, or that is something else altogether",
            "It is set aside with a reason, and the round is what it is without that client.",
            ("chaos/replies.py", "tests/test_gate.py::test_a_refused_client_might_as_well_have_been_absent"),
        ),
        Fault(
            "Sample counts, class counts or probabilities that cannot be",
            "The same; a client's number of samples is in a simulation the roster's, and at sites what the site said "
            "first, up to most_samples.",
            ("chaos/replies.py",),
        ),
        Fault(
            "Replies so large or so many that they would fill the memory",
            "Set aside by their number of bytes and what they say of themselves, before anybody reads all of it.",
            ("chaos/replies.py", "chaos/memory.py"),
        ),
        Fault(
            "A reply that comes twice, from a stranger, or to no question",
            "The first counts; the others are set aside.",
            ("chaos/replies.py", f"{FLOWER}::test_an_answer_to_another_message_is_ignored"),
        ),
        Fault(
            "Replies are lost, all of a round's too",
            "Who is not heard does not count: the server's state is as if that client had never been there.",
            (f"{CHECK}::test_registering_a_method_is_being_tested",),
        ),
        Fault(
            "Fewer answer than the quorum",
            f"The round is recorded as skipped and changes nothing; after several in a row the run ends with "
            f"{code(QuorumError)}, and can be resumed.",
            (
                f"{QUORUM}::test_a_round_below_quorum_leaves_everything_as_it_was",
                f"{QUORUM}::test_a_run_gives_up_after_several_rounds_and_can_be_resumed",
            ),
        ),
        Fault(
            "The server's own numbers overflow, from replies that are finite",
            "The round is recorded as skipped and changes nothing, as one below the quorum.",
            (
                f"{QUORUM}::test_a_round_after_which_the_server_is_not_finite_leaves_everything_as_it_was",
                f"{QUORUM}::test_a_hostile_reply_of_huge_numbers_never_stays",
            ),
        ),
        Fault(
            "Finite poison: negative variances, impossible counters, networks far from what was sent or the others",
            "It is set aside with a reason, and the round is what it is without that client.",
            (
                "chaos/replies.py",
                "tests/test_poison.py::test_finite_poison_is_refused_and_the_run_is_as_without_that_reply",
            ),
        ),
        Fault(
            "A model that clients cannot train, whoever spoiled it",
            "The run goes back to the newest state that clients could train and says so, to the same bits if it is "
            "killed and resumed.",
            (
                "tests/test_rollback.py::test_poison_that_no_gate_knows_costs_two_rounds_and_not_the_run",
                "tests/test_rollback.py::test_a_run_that_goes_back_can_be_killed_at_any_call",
            ),
        ),
        Fault(
            "A client that reports more samples than it has",
            "With `aggregation.cap`, which `fedalloy deploy init` sets, its share of the weight is at most that.",
            (
                "tests/test_cap.py::test_a_client_that_claims_a_million_samples_has_at_most_its_cap_of_every_model",
                "tests/deploy/test_init.py::test_one_site_s_weight_is_capped_unless_the_experiment_says_otherwise",
            ),
        ),
        Fault(
            "A client that hangs",
            "With `quorum.deadline` it counts as absent, and its worker is replaced; without one it is waited for.",
            (f"{QUORUM}::test_the_pool_goes_on_without_a_client_that_hangs_or_kills",),
        ),
        Fault(
            "A client's code raises an error",
            "In a simulation the run ends and names client and action, since that is a fault of the method; in a "
            "deployment the site counts as absent.",
            (
                f"{POOL}::test_a_failing_client_is_told_with_its_place",
                f"{FLOWER}::test_an_action_that_raises_or_returns_nothing_is_a_sentence",
            ),
        ),
        Fault(
            "A batch or a client of one sample, with BatchNorm",
            "It trains all the same.",
            ("tests/test_training.py::test_no_size_breaks_batch_norm",),
        ),
        Fault(
            "What a client has spent of its privacy, when the run is killed",
            "It is never less than what its released work has cost. In a simulation it is equal to that of a run that "
            "was not killed; clients on Flower, which keep their own ledgers, also pay for the work that died.",
            (
                "chaos/kills.py",
                "tests/test_privacy_kills.py::test_no_kill_makes_a_client_forget_what_it_has_spent",
                "tests/test_privacy_kills.py::test_a_process_that_is_killed_loses_nothing_of_the_account",
                "tests/flower/test_ledger.py::test_no_kill_leaves_a_step_unpaid",
            ),
        ),
        Fault(
            "A site's privacy ledger that is damaged, or missing though the site has trained",
            "The site does not train, and says which file is to be restored.",
            ("tests/flower/test_ledger.py::test_a_ledger_that_is_lost_or_damaged_is_no_new_one",),
        ),
        Fault(
            "A server that subtracts from private replies all the noise that it can compute",
            "It learns no more than from fresh noise.",
            ("chaos/curious_server.py",),
        ),
    ],
    "What is read": [
        Fault(
            "An experiment with unknown keys, wrong types, impossible values, or that is no experiment at all",
            f"Refused in one line with {code(UsageError)}: where, what, and what to write instead.",
            ("chaos/configs.py", "tests/test_config.py::test_what_is_wrong_is_said_in_one_sentence"),
        ),
        Fault(
            "An experiment that is accepted",
            "It works.",
            ("chaos/configs.py",),
        ),
        Fault(
            "A command line that is wrong in whatever way",
            "One line, and a code that says why.",
            ("chaos/commands.py", "tests/test_cli.py::test_bad_input_gets_one_sentence_and_leaves_nothing"),
        ),
        Fault(
            "Labels that are no classes, samples that are no numbers",
            f"Refused with {code(DataError)} when they are read.",
            (
                "tests/data/test_catalogue.py::test_a_wrong_data_set_is_refused",
                "tests/data/test_catalogue.py::test_wrong_arrays_are_refused",
            ),
        ),
        Fault(
            "Damaged data, weights, records or descriptions of runs",
            f"Refused in one line with {code(DataError)}, or sound.",
            ("chaos/files.py", "tests/data/test_fetch.py::test_a_corrupt_file_names_itself_both_hashes_and_the_remedy"),
        ),
        Fault(
            "A run folder in which a stranger has written anything",
            f"Refused in one line with {code(DataError)} that names the file and the key, or its report is sound.",
            (
                "chaos/run_folders.py",
                "tests/test_run_files.py::test_what_cannot_be_reported_is_refused_with_its_file_and_key",
            ),
        ),
        Fault(
            "A site's own file is damaged, or does not hold what was agreed on",
            f"`start.sh` says so in one line, with the line and column, the row or the image, and {code(DataError)}.",
            (
                "chaos/site_files.py",
                "tests/deploy/test_site_data.py::test_a_csv_file_is_refused_with_the_place_of_what_is_wrong",
            ),
        ),
        Fault(
            "Labels that start late or have gaps, token ids as features",
            f"Refused with {code(DataError)} that says what was found and what to write.",
            (
                "tests/data/test_arrays.py::test_labels_that_start_late_or_have_gaps_are_a_sentence",
                "tests/data/test_arrays.py::test_token_ids_are_not_taken_for_quantities",
            ),
        ),
        Fault(
            "A download that fails, stops in the middle or is something else",
            f"{code(DataError).capitalize()}; nothing of it is left.",
            ("tests/data/test_fetch.py::test_a_failed_download_is_one_sentence_and_leaves_nothing",),
        ),
        Fault(
            "A file that would execute something when it is read",
            "It is not executed: nothing on disk or on the wire is unpickled, imported or evaluated. What begins like "
            f"a pickle is refused with {code(SecurityError)}; as a checkpoint it is passed over if another is whole.",
            (
                f"{NOTHING}::test_what_would_execute_something_is_refused_by_its_first_bytes",
                f"{NOTHING}::test_every_use_that_could_execute_is_allowed_and_needed",
                f"{NOTHING}::test_a_session_executes_nothing_that_it_reads",
            ),
        ),
        Fault(
            "Names that are paths, modules or commands",
            "A name chooses among what is registered; folders are called by harmless names.",
            (
                f"{NOTHING}::test_an_experiment_names_what_is_registered_and_nothing_else",
                f"{NOTHING}::test_a_folders_name_is_harmless_whatever_the_label",
            ),
        ),
        Fault(
            "Others on the same machine",
            "A run's folder and files are for its owner alone.",
            (f"{STORE}::test_what_a_store_writes_is_for_its_owner_alone",),
        ),
    ],
    "Deployments": [
        Fault(
            "The server's run is cut off",
            "It goes on from its own checkpoint to the model of a simulation.",
            ("tests/deploy/test_app.py::test_a_run_that_was_cut_off_goes_on_to_the_same_model",),
        ),
        Fault(
            "A site is away, or comes back under another id",
            "It is waited for, then counts as absent; when it is back it is found by its key.",
            (
                f"{FLOWER}::test_a_node_that_stays_away_is_absent",
                f"{FLOWER}::test_a_node_that_comes_back_with_another_id_is_found_again",
            ),
        ),
        Fault(
            "A site says that it is another one, at the start or when a run is resumed",
            "Its key says who it is: it is left out, with both numbers. A node without a registered key is ignored.",
            (
                f"{IDENTITY}::test_a_site_cannot_begin_a_run_as_another",
                f"{IDENTITY}::test_a_site_cannot_resume_a_run_as_another",
                f"{IDENTITY}::test_a_node_that_was_never_registered_is_ignored_and_said_once",
            ),
        ),
        Fault(
            "A site claims more samples than `most_samples` allows, or other sizes or label counts than at the start",
            "It is left out, with both numbers; nothing is allocated by what it claims.",
            (
                f"{IDENTITY}::test_a_claim_beyond_the_limit_is_refused_with_both_numbers",
                f"{IDENTITY}::test_sizes_stay_what_they_were_when_the_run_began",
                f"{IDENTITY}::test_label_counts_are_those_of_the_introduction",
            ),
        ),
        Fault(
            "A site's account of its work, its privacy or its evaluation cannot be",
            "The reply is set aside at once, and the run goes on.",
            (
                f"{FLOWER}::test_a_bad_answer_costs_its_client_the_round_and_nobody_else",
                f"{FLOWER}::test_an_evaluation_that_cannot_be_is_left_out",
                f"{FLOWER}::test_a_client_that_is_there_but_does_not_match_is_not_waited_for",
            ),
        ),
        Fault(
            "A server of another authority, strangers at the server",
            "They are not believed, and reach nothing but the place where sites report.",
            (
                f"{DEPLOY}::test_a_link_of_another_authority_is_not_believed",
                f"{DEPLOY}::test_strangers_reach_the_fleet_alone",
            ),
        ),
        Fault(
            "Insecure defaults, secrets in the wrong hands",
            "What `fedalloy deploy init` writes asks for everything that protects; only the owner reads its keys.",
            (
                "tests/deploy/test_init.py::test_scripts_ask_for_everything_that_protects",
                "tests/deploy/test_init.py::test_only_the_owner_reads_secrets",
            ),
        ),
        Fault(
            "A server that asks a site for what it may not",
            "The site refuses.",
            (
                f"{FLOWER}::test_a_client_refuses_what_a_server_may_not_ask",
                f"{FLOWER}::test_a_server_cannot_reset_what_a_client_has_spent",
            ),
        ),
        Fault(
            "A server that has a site evaluate models of its own choice",
            "Under [privacy] the site evaluates nothing. Otherwise it refuses what its method cannot have and what "
            "belongs to no round that can be under way, answers for few models in a round, and logs their digests.",
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
    "Equal bits are promised on the same kind of machine with the same versions; others are refused.",
    "Hashes find damage, not forgery: who can write a run's folder can also write its hashes.",
    "A reply that keeps the contract cannot be told from an honest one; what bounds such an attacker is an option of "
    "some [methods](methods.md).",
    "Attackers do what the table says and nothing else: free riders echo exactly what they were sent, by which Krum "
    "knows them. With noise of their own, or an attack made for the defence, less may be kept.",
    "A real power cut and network file systems were not tried.",
)
