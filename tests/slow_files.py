"""The files whose tests take longest: begun first, or one process would end long after the others.

A file's tests stay in one process (``--dist loadfile``: what they share is made once). As measured on two cores; a new
file of more than 25 s belongs here, and ``--durations`` of `make test` says which does.
"""

from __future__ import annotations

SLOW_FILES = (
    # real services
    "tests/stack/test_agent_kafka.py",
    "tests/stack/test_road_for_people.py",
    "tests/stack/test_kafka_broker.py",
    "tests/stack/test_agent_road.py",
    "tests/stack/test_forged_words.py",
    "tests/stack/test_ways_in.py",
    "tests/stack/test_process_command.py",
    "tests/stack/test_packages.py",
    "tests/stack/test_own_services.py",
    "tests/stack/test_notify.py",
    "tests/stack/test_docs_commands.py",
    "tests/stack/test_service.py",
    "tests/stack/test_otlp_out.py",
    "tests/stack/test_compose_files.py",
    # simulated jobs
    "tests/processors/flink/test_same_as_embedded.py",
    "tests/same_incidents/test_simulated.py",
    "tests/simulator/test_findings_grounds.py",
    "tests/simulator/test_findings.py",
    "tests/commands/report/test_in_a_browser.py",
    "tests/simulator/test_sound_days.py",
    "tests/evaluation/bench/test_forked_prefix.py",
    "tests/simulator/test_findings_intra.py",
    "tests/agents/test_no_secret_leaves.py",
    "tests/benchmarks/test_faultbench_fill.py",
    "tests/diagnosis/flight_recorder/test_real_dumps.py",
    "tests/benchmarks/test_faultbench_record.py",
    "tests/simulator/test_shared_mechanisms.py",
    "tests/evaluation/bench/test_code_closure.py",
    "tests/house/test_house.py",
    "tests/processors/job/test_accounting.py",
    # real jobs and commands
    "tests/evaluation/test_bench.py",
    "tests/docs_commands/test_commands_here.py",
    "tests/commands/test_run_flight_recorder.py",
    "tests/commands/test_run_cli.py",
    "tests/test_package.py",
    "tests/outside/test_outside.py",
    "tests/commands/test_check_inputs.py",
    "tests/commands/test_run_withheld.py",
    "tests/instrumentation/test_jobs.py",
    "tests/commands/inject/test_game_day.py",
    "tests/commands/supervise/test_supervised_run.py",
    "tests/checkpoint/test_real_job.py",
    "tests/test_sentences_are_output.py",
    "tests/commands/check/test_check_node.py",
    "tests/commands/check/test_check_gpus.py",
    "tests/instrumentation/test_call_sites.py",
    "tests/instrumentation/test_input_checks.py",
    "tests/commands/test_run_job_log.py",
    "tests/commands/test_run_scheduler.py",
    "tests/commands/test_demo.py",
)
