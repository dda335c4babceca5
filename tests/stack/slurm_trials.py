"""All trials on a real Slurm: ``test_slurm.py`` runs the quick ones once, ``benchmarks/slurm_acts.py`` all, often."""

from __future__ import annotations

from collections.abc import Mapping

from tests.stack import slurm_job_trials as jobs
from tests.stack import slurm_node_trials as nodes
from tests.stack.slurm_desk import Trial

TRIALS: Mapping[str, Trial] = {
    "drain": Trial(asked="drain, the job goes on; given back", hold=nodes.drained_and_given_back),
    "others": Trial(asked="what others drained stays", hold=nodes.what_others_drained_stays),
    "reboot": Trial(asked="others' reboot (dry) stands", hold=nodes.a_reboot_of_others_is_not_called_off),
    "expiry": Trial(asked="a drain expires by itself", hold=nodes.a_drain_expires),
    "requeue": Trial(asked="requeue: once, elsewhere", hold=jobs.requeued_elsewhere, is_slow=True),
    "ended": Trial(asked="ended on purpose stays ended", hold=jobs.what_ended_on_purpose_stays_ended),
    "array": Trial(asked="one task of an array", hold=jobs.one_task_of_an_array),
    "exclude": Trial(asked="ExcNodeList; undone", hold=jobs.excluded_by_one_job, is_slow=True),
    "srun": Trial(asked="srun --exclude, one after the other", hold=jobs.srun_leaves_nodes_out, is_slow=True),
    "prolog": Trial(asked="prolog with whichrank check", hold=nodes.prolog_takes_a_bad_node_out, is_slow=True),
    "epilog": Trial(asked="epilog with whichrank check", hold=nodes.epilog_takes_a_bad_node_out, is_slow=True),
    "ends": Trial(asked="end states", hold=jobs.ends_are_told),
    "id": Trial(asked="a job's id, on two nodes", hold=jobs.one_id_on_all_nodes, is_slow=True),
    "lost": Trial(asked="slurmctld loses a node; it comes back", hold=nodes.a_lost_node_comes_back, is_slow=True),
}
