"""What users were promised (issue 18, twenty lines), clause by clause, and the test that fails when one is broken.

A promise that no test can see names its section of CONTRIBUTING.md instead. Nothing is run here: the named tests must
exist, where they are named, so that a renamed or deleted one is noticed.
"""

from __future__ import annotations

import ast
import re
from dataclasses import dataclass
from functools import cache
from pathlib import Path

import pytest

TESTS = Path(__file__).parent
CONTRIBUTING = TESTS.parent / "CONTRIBUTING.md"


@dataclass(frozen=True)
class Promise:
    """One clause of a line, and who keeps it: `file::test` below tests/, or a heading of CONTRIBUTING.md."""

    line: int  # 0: what the whole is measured by
    clause: str
    kept_by: tuple[str, ...]


def _of(line: int, **clauses: str) -> list[Promise]:
    return [Promise(line, name.replace("_", " "), tuple(kept.split())) for name, kept in clauses.items()]


PLAN, SUPPLIED = "experiments/test_plan.py", "experiments/test_supplied.py"
PAGE, SUMMARY, PLOT = "report/test_page.py", "report/test_summary.py", "report/test_plot.py"
BROWSER, BOARD, FORMS = "report/test_browser.py", "report/test_leaderboard.py", "report/test_leaderboard_forms.py"
DEPLOYED, DEFENDED, OWN = "experiments/test_deployed.py", "experiments/test_defended.py", "experiments/test_own_code.py"
OUTPUTS, FORMATS, ASKED = "models/test_outputs.py", "models/test_formats.py", "models/test_behind_an_interface.py"
UNLABELLED, NOTEBOOK, INIT = "experiments/test_unlabelled.py", "experiments/test_finished.py", "cli/test_init.py"
INTEGRATIONS, CARE, OUTLOOK = "integrations/test_integrations.py", "store/test_care.py", "runners/test_outlook.py"
CI, DOCS, README, WHEEL = "test_ci_templates.py", "test_docs_site.py", "test_readme.py", "test_wheel.py"

PROMISES = [
    # Wrong or misleading answers
    *_of(
        1,
        attacks_added_for_a_defence_run_on_the_twin=f"{PLAN}::test_the_twin_meets_the_attacks_made_against_the_defence",
        a_dry_run_names_them=f"{PLAN}::test_a_dry_run_names_what_was_added",
        no_table_compares_different_attacks=f"{BOARD}::test_like_is_compared_with_like "
        f"{BOARD}::test_every_ranked_figure_rests_on_the_same_attacks "
        f"{FORMS}::test_unlike_attacks_are_told_in_every_format",
    ),
    *_of(
        2,
        the_documented_gates_can_be_passed=f"{PLAN}::test_the_demo_can_pass_its_documented_gate "
        f"{DOCS}::test_documented_gates_can_be_passed {README}::test_commands_run",
        a_level_out_of_reach_is_refused=f"{PLAN}::test_a_level_that_cannot_be_reached_is_refused_with_the_remedy",
        a_limit_out_of_range_is_refused=f"{PLAN}::test_a_limit_outside_the_range_of_its_metric_is_refused",
    ),
    *_of(
        3,
        train_val_test_are_recognised=f"{SUPPLIED}::test_train_val_and_test_are_no_classes "
        f"{SUPPLIED}::test_train_and_val_alone_leave_half_to_the_attacker",
        outputs_and_classes_must_agree=f"{SUPPLIED}::test_outputs_and_classes_must_agree",
    ),
    *_of(
        4,
        folders_say_who_owns_what=f"{SUPPLIED}::test_folders_say_who_owns_what "
        f"{SUPPLIED}::test_the_command_line_takes_folders_and_normalisation",
        unknown_training_data_are_called_so=f"{SUPPLIED}::test_nobody_said_what_given_weights_were_trained_on "
        f"{SUPPLIED}::test_weights_and_one_folder_say_nothing_about_training",
        accuracy_at_chance_raises_a_flag=f"{SUPPLIED}::test_nobody_said_what_given_weights_were_trained_on "
        "auditing/test_flags.py::test_a_useless_target_is_not_a_private_one",
        normalisation=f"{SUPPLIED}::test_normalisation_can_be_named {SUPPLIED}::test_bad_normalisations_are_one_line",
    ),
    *_of(
        5,
        what_was_measured_is_said=f"{PAGE}::test_what_was_measured_stands_beside_every_verdict "
        f"{SUMMARY}::test_an_inconclusive_audit_still_says_what_was_measured",
        a_failure_is_valid_at_every_level=f"{PAGE}::test_a_failure_is_valid_at_every_level "
        "auditing/test_verdict.py::test_a_blocking_flag_turns_pass_into_inconclusive_and_leaves_fail_alone",
    ),
    *_of(
        6,
        the_oracle_is_not_what_a_blind_attacker_gets=f"{PAGE}::test_the_oracle_is_no_floor "
        f"{SUMMARY}::test_the_oracle_is_no_floor",
        nor_drawn_as_the_floor=f"{PLOT}::test_the_highest_floor_is_no_oracle",
    ),
    # Dead ends
    *_of(
        7,
        train_from_given_weights=f"{DEPLOYED}::test_given_weights_are_trained_on_with_a_defence "
        f"{DEPLOYED}::test_the_command_line_trains_given_weights_on_and_exports_an_own_file",
        rebuilt_networks_load_again=f"{DEPLOYED}::test_weights_of_a_rebuilt_network_load_again",
        an_own_file_is_exported=f"{DEPLOYED}::test_an_own_file_is_exported_with_its_source_and_runs_only_when_allowed",
        client_and_server=f"{DEPLOYED}::test_the_halves_of_a_loaded_target_are_those_that_were_trained "
        f"{DEPLOYED}::test_a_random_release_is_drawn_anew_and_bad_pictures_are_refused",
        example_and_card=f"{DEPLOYED}::test_the_example_runs_and_the_card_is_true",
    ),
    *_of(
        8,
        loss_and_a_hook_per_epoch=f"{DEFENDED}::test_an_own_loop_gives_the_weights_of_ours "
        f"{DEFENDED}::test_what_is_missing_is_said",
        lightning=f"{INTEGRATIONS}::test_lightning",
        hugging_face=f"{INTEGRATIONS}::test_hugging_face",
    ),
    *_of(
        9,
        dicts_tuples_and_model_outputs=f"{OUTPUTS}::test_scores_are_found_wherever_they_are "
        f"{OUTPUTS}::test_a_model_output_of_transformers",
        several_inputs=f"{OUTPUTS}::test_several_inputs_become_one",
        leak_against_the_mean_picture=f"{UNLABELLED}::test_leak_is_measured_against_the_mean_picture "
        f"{UNLABELLED}::test_a_flat_folder_of_pictures",
        a_function_in_place_of_accuracy=f"{UNLABELLED}::test_a_function_takes_the_place_of_accuracy",
        or_none_and_the_page_says_so=f"{UNLABELLED}::test_a_page_without_use_says_so",
    ),
    *_of(
        10,
        a_function_is_audited=f"{ASKED}::test_a_function_audits_whole "
        f"{ASKED}::test_a_function_leaks_as_much_as_the_scores_of_its_network",
        an_address_is_audited=f"{ASKED}::test_a_server_gives_away_what_its_network_does "
        f"{ASKED}::test_the_command_line_audits_a_server",
        the_protocol_is_documented=f"{ASKED}::test_the_documented_protocol_is_the_one_that_is_spoken",
        labels_only=f"{ASKED}::test_labels_tell_less_than_scores_and_grant_less "
        f"{ASKED}::test_labels_alone_rebuild_classes_behind_a_server",
        no_bare_StopIteration=f"{ASKED}::test_a_network_without_a_layer_to_cut_at_is_one_line",
    ),
    *_of(
        11,
        pt2=f"{FORMATS}::test_an_exported_program_is_cut_by_node "
        f"{FORMATS}::test_an_exported_program_is_read_only_when_trusted",
        torchscript=f"{FORMATS}::test_torchscript_is_refused_for_what_it_is",
        onnx=f"{FORMATS}::test_an_onnx_network_leaks_as_the_network_it_came_from "
        f"{FORMATS}::test_onnx_without_its_converter_says_what_to_install",
        prefixes=f"{FORMATS}::test_prefixes_of_wrappers_are_taken_off "
        f"{FORMATS}::test_checkpoints_of_real_wrappers_load",
        weights_as_a_model=f"{FORMATS}::test_weights_as_a_model_are_explained",
        compiled_networks=f"{OUTPUTS}::test_a_compiled_network_is_that_which_was_compiled",
        loaders=f"{OUTPUTS}::test_a_loader_is_data",
    ),
    *_of(
        12,
        from_a_file=f"{OWN}::test_a_class_of_a_file_is_a_method {OWN}::test_the_command_line_takes_them",
        classes_and_instances=f"{OWN}::test_classes_and_instances_go_through_the_interface {OWN}::test_so_do_attacks",
        how_to_pages=f"{OWN}::test_the_how_to_pages_run",
    ),
    *_of(
        13,
        shipped_ones_by_name=f"{INIT}::test_shipped_configurations_go_by_name",
        init=f"{INIT}::test_what_init_writes_is_what_audit_reads",
        no_path_outside=f"{INIT}::test_no_shipped_file_names_a_place_outside",
        missing_data_say_where_they_come_from="cli/test_commands.py::test_configurations_say_which_data_they_miss "
        "data/test_torchvision_sets.py::test_a_set_that_is_not_there_says_how_to_get_it "
        "data/test_npz.py::test_named_sets_say_where_they_belong_and_where_they_come_from "
        "data/test_lfw.py::test_damaged_bulky_and_missing_archives_are_refused",
    ),
    *_of(
        14,
        size_by_kind=f"{CARE}::test_size_is_told_by_kind",
        prune_by_age_and_kind=f"{CARE}::test_entries_go_by_kind_and_age_and_nothing_else_does "
        f"{CARE}::test_checkpoints_that_nobody_needs_go_too",
        verify="security/test_store_integrity.py::test_the_command_names_what_is_damaged_and_moves_nothing",
        move=f"{CARE}::test_a_store_moves_when_nobody_works_in_it",
        ridge_is_refitted=f"{CARE}::test_matrices_of_ridge_are_refitted_and_not_kept",
    ),
    *_of(
        15,
        show_finds_what_train_printed=f"{INIT}::test_show_finds_what_train_printed",
        an_interrupt_says_what_to_do=f"{INIT}::test_an_interrupt_says_what_to_do_next",
    ),
    # What people expect
    *_of(
        16,
        a_dry_run_tells_what_it_takes=f"{OUTLOOK}::test_a_dry_run_tells_it "
        f"{OUTLOOK}::test_what_was_told_is_what_was_done experiments/test_memory_plan.py::test_a_dry_run_tells",
        one_line_counts_controls_too=f"{OUTLOOK}::test_what_was_told_is_what_was_done "
        f"{OUTLOOK}::test_the_checks_of_e2_are_counted {OUTLOOK}::test_a_terminal_shows_one_line",
        bench_estimates_at_once="runners/test_schedule.py::test_time_left_is_told_from_the_first_job_on",
        time_with_workers=f"{OUTLOOK}::test_the_time_that_is_told_includes_that_of_workers",
    ),
    *_of(
        17,
        progress=f"{NOTEBOOK}::test_progress_is_shown_in_notebooks_and_where_it_is_asked_for "
        f"{NOTEBOOK}::test_one_line_is_written_again_and_again",
        verdict_and_pictures=f"{NOTEBOOK}::test_a_notebook_shows_verdict_targets_and_pictures",
        summary_and_frame=f"{NOTEBOOK}::test_summary_and_frame",
        plot=f"{NOTEBOOK}::test_the_plot_has_every_target_where_it_belongs",
        two_executed_notebooks=f"{DOCS}::test_there_are_two_notebooks "
        f"{DOCS}::test_notebooks_are_executed_small_and_without_errors",
    ),
    *_of(
        18,
        the_limit_is_drawn=f"{PAGE}::test_the_limit_and_the_course_of_an_attack_are_drawn "
        f"{PLOT}::test_marks_lie_where_the_ticks_say",
        labels_do_not_collide=f"{PLOT}::test_labels_do_not_overlap "
        f"{PLOT}::test_labels_do_not_overlap_wherever_marks_lie",
        the_worst_picture=f"{PAGE}::test_the_worst_picture_and_the_summary_come_first "
        f"{PAGE}::test_the_summary_shows_the_worst_picture_of_what_is_judged "
        "experiments/test_audit.py::test_the_worst_picture_is_the_one_whose_figure_stands_beside_it",
        one_printed_page_then_the_record=f"{BROWSER}::test_the_summary_is_one_sheet_of_paper "
        f"{PAGE}::test_the_worst_picture_and_the_summary_come_first",
        half_the_length_on_a_phone=f"{BROWSER}::test_a_phone_shows_half_and_a_screen_all",
        plain_names=f"{PAGE}::test_a_network_of_a_file_is_called_by_its_file",
        flags_by_cause=f"{PAGE}::test_flags_are_told_once_for_each_cause "
        f"{SUMMARY}::test_one_failed_attack_beside_a_successful_one_is_one_note",
        the_leaderboard_opens_with_a_plot=f"{FORMS}::test_every_mark_tells_its_figures_and_leads_to_its_row",
        too_few_seeds=f"{BOARD}::test_too_few_seeds_have_no_interval_and_no_winner "
        f"{FORMS}::test_unlike_attacks_are_told_in_every_format",
        no_empty_tables=f"{FORMS}::test_no_table_is_empty",
        the_results_index="studies/test_published.py"
        "::test_the_index_tells_of_each_paper_what_held_how_sure_and_shows_one_picture",
    ),
    *_of(
        19,
        action_and_template_gate=f"{CI}::test_the_steps_of_the_action_gate_a_build",
        findings_are_uploaded_and_resolve=f"{CI}::test_the_steps_of_the_action_gate_a_build "
        "report/test_sarif_log.py::test_findings_are_anchored_to_what_a_reader_would_change",
        the_summary_is_commented=f"{CI}::test_the_steps_of_the_action_gate_a_build "
        f"{CI}::test_the_comment_of_the_gitlab_job_reaches_its_merge_request",
        the_dockerfile_is_linted=f"{CI}::test_the_dockerfile_is_clean_and_copies_what_there_is",
    ),
    Promise(19, "the image is built where Docker exists", ("The image",)),
    *_of(
        20,
        tutorials_and_how_tos=f"{DOCS}::test_every_reader_has_a_page {DOCS}::test_examples_run "
        f"{DOCS}::test_commands_are_understood",
        generated_reference_and_every_setting=f"{DOCS}::test_the_reference_is_current_and_describes_every_setting "
        "test_method_pages.py::test_pages_are_current",
        search_from_disk_and_no_other_hosts=f"{DOCS}::test_the_site_builds",
    ),
    # It is done when
    *_of(
        0,
        a_wheel_in_a_fresh_environment=f"{WHEEL}::test_the_installed_wheel_does_what_the_readme_says",
        extras_in_continuous_integration=f"{CI}::test_continuous_integration_installs_the_extras_that_tests_skip_without",
        labels_for_2_8_and_20_targets=f"{PLOT}::test_labels_do_not_overlap "
        f"{BROWSER}::test_labels_of_the_plot_do_not_overlap_as_drawn",
        a_verdict_on_the_first_screen=f"{README}::test_a_newcomer_reaches_a_verdict_on_the_first_screen "
        f"{README}::test_python_runs {README}::test_commands_run",
        five_papers_in_one_table=f"{README}::test_the_table_of_papers_is_current",
    ),
    Promise(0, "pages were opened in Chromium and looked at", ("Pages in a browser",)),
]


@cache
def _tests_in(name: str) -> frozenset[str]:
    path = TESTS / name
    tree = ast.parse(path.read_text(encoding="utf-8")) if path.is_file() else ast.Module([], [])
    return frozenset(node.name for node in tree.body if isinstance(node, ast.FunctionDef))


def _exists(keeper: str) -> bool:
    name, _, test = keeper.partition("::")
    if not test:
        section = CONTRIBUTING.read_text(encoding="utf-8").partition("\n## Checks by hand\n")[2]
        return name in re.findall(r"^### (.+)$", section, re.MULTILINE)
    return test.startswith("test_") and test in _tests_in(name)


@pytest.mark.parametrize("promise", PROMISES, ids=lambda promise: f"{promise.line}-{promise.clause}")
def test_a_promise_is_kept_by_what_exists(promise: Promise) -> None:
    assert promise.kept_by
    assert [keeper for keeper in promise.kept_by if not _exists(keeper)] == []


def test_every_line_has_its_promises() -> None:
    assert {promise.line for promise in PROMISES} == set(range(21))
    named = [(promise.line, promise.clause) for promise in PROMISES]
    assert len(set(named)) == len(named)


def test_what_does_not_exist_is_noticed() -> None:
    assert not _exists(f"{PLAN}::test_nobody_wrote")
    assert not _exists("nowhere.py::test_a_promise_is_kept_by_what_exists")
    assert not _exists("House rules"), "a heading, but no check"
