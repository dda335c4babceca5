"""Scenarios by name: a cluster, jobs on it, and what goes wrong. Everything follows from name, ranks and seed."""

from __future__ import annotations

import math
import zlib
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace

from ..clock import START_UNIX_NS, generator
from ..cluster_topology import Topology
from ..faults.catalogue import CATALOGUE
from ..faults.company import anomalies, blinded
from ..faults.fault import FaultKind, FaultSite
from ..ground_truth import Truth
from ..jobs import JobSpec
from ..program import Recipe
from ..resources import ParameterChange
from ..sensing import Sensing
from ..world import World
from .grounds import TUNING, Ground, moved
from .histories import ROUND_S, ROUNDS
from .layouts import (
    SERVICE_AT_S,
    ScenarioLayout,
    crossing_jobs,
    experts_job,
    four_jobs,
    histories,
    jobs_over_racks,
    jobs_over_spines,
    late_job,
    moving_job,
    one_job,
    pipelined_job,
    preempting_jobs,
    reading_jobs,
    saving_jobs,
    starting_jobs,
    two_jobs,
)

#: By then a job has made some sixty steps: as many as the operators want to have seen before they call a pace usual.
ONSET_S = 150.0
#: What is left after a fault for it to show, and for the job to come back.
AFTER_S = 75.0
HEALTHY = "healthy"
_GOLDEN = (math.sqrt(5.0) - 1.0) / 2.0


@dataclass(frozen=True, kw_only=True)
class Setting:
    """A cluster with its jobs, and what will happen there. Until the first change all is as in any other setting of
    the same cluster and jobs with the same seed."""

    topology: Topology
    jobs: tuple[JobSpec, ...]
    changes: tuple[ParameterChange, ...]
    truths: tuple[Truth, ...]

    @property
    def undisturbed_s(self) -> float:
        """When the first change comes, in seconds of the simulation; inf without any."""
        return min((change.at_s for change in self.changes), default=math.inf)

    def world(
        self, seed: int, scenario: str, *, start_unix_ns: int = START_UNIX_NS, sensing: Sensing = Sensing.CLIENTS
    ) -> World:
        """A new world of this setting, before anything has happened. sensing: who tells of storage and fabric."""
        world = World(self.topology, self.jobs, seed=seed, start_unix_ns=start_unix_ns, sensing=sensing)
        world.expect(self.changes, self.truths, scenario=scenario)
        return world


@dataclass(frozen=True, kw_only=True)
class Scenario:
    """A layout and what goes wrong there. faults: each plans one fault; at_s: when. after_s: how long the run goes on
    after the last one.

    apart: each fault strikes a job of its own, in the order of the jobs.
    """

    name: str
    sentence: str
    layout: Callable[[int, Recipe], ScenarioLayout]
    faults: Sequence[FaultKind] = ()
    at_s: float = ONSET_S
    after_s: float = AFTER_S
    recipe: Recipe = field(default_factory=Recipe)
    apart: bool = False

    @property
    def minutes(self) -> float:
        """How long a run lasts in simulated minutes, where the faults begin as usual."""
        return (self.at_s + self.after_s) / 60.0

    def build(
        self,
        ranks: int,
        seed: int,
        *,
        recipe: Recipe | None = None,
        at_s: float | None = None,
        start_unix_ns: int = START_UNIX_NS,
        company: bool = False,
        blind_share: float = 0.0,
        ground: Ground = TUNING,
        sensing: Sensing = Sensing.CLIENTS,
    ) -> World:
        """A world of what ``lay_out`` gives for these arguments. sensing: as of ``Setting.world``.

        Raises ValueError for ranks that cannot be laid out.
        """
        setting = self.lay_out(
            ranks, seed, recipe=recipe, at_s=at_s, company=company, blind_share=blind_share, ground=ground
        )
        return setting.world(seed, self.name, start_unix_ns=start_unix_ns, sensing=sensing)

    def lay_out(
        self,
        ranks: int,
        seed: int,
        *,
        recipe: Recipe | None = None,
        at_s: float | None = None,
        company: bool = False,
        blind_share: float = 0.0,
        ground: Ground = TUNING,
    ) -> Setting:
        """The cluster, jobs, changes and truths of a run. at_s: when faults begin, None as usual; up to 4 s are added
        by chance.

        Raises ValueError for ranks that cannot be laid out. company: beside faults stand harmless anomalies of other
        nodes. blind_share: of the runs of a scenario, those in which the collectors do not watch that would tell of the
        fault.
        """
        layout = self.layout(ranks, recipe or self.recipe)
        topology, jobs = moved(layout.topology, layout.jobs, ground, seed)
        layout = ScenarioLayout(topology=topology, jobs=jobs)
        changes: list[ParameterChange] = []
        truths: list[Truth] = []
        for number, kind in enumerate(self.faults):
            random = generator(seed, self.name, number)
            began_s = (self.at_s if at_s is None else at_s) + float(random.uniform(0.0, 4.0))
            jobs = layout.jobs[number:] + layout.jobs[:number] if self.apart else layout.jobs
            planned = kind.plan(FaultSite(topology=layout.topology, jobs=jobs, random=random, at_s=began_s))
            changes += planned.changes
            truths.append(planned.truth)
        asked = [truth for truth in truths if truth.kinds]
        if asked and is_blind(self.name, seed, blind_share):
            names = [layout.topology.node_name(node) for node in range(layout.topology.nodes)]
            for place, truth in enumerate(truths):
                truths[place], missing = blinded(truth, names)
                changes += missing
        if asked and company:
            struck = [name for truth in asked for name in truth.nodes]
            random = generator(seed, self.name, "company")
            site = FaultSite(topology=layout.topology, jobs=layout.jobs, random=random, at_s=asked[0].at_s)
            for planned in anomalies(site, struck):
                changes += planned.changes
                truths.append(planned.truth)
        return Setting(topology=layout.topology, jobs=tuple(layout.jobs), changes=tuple(changes), truths=tuple(truths))


def is_blind(scenario: str, seed: int, share: float) -> bool:
    """Whether nobody watches what would tell of the faults in this run: so in ``share`` of the runs with seeds in a
    row.
    """
    return (zlib.crc32(scenario.encode()) / 2**32 + seed * _GOLDEN) % 1.0 < share


#: What shows only over many jobs.
_HISTORIES = ("lemon_node", "bad_rollout", "corrupts_jobs")
_LAYOUTS: dict[str, Callable[[int, Recipe], ScenarioLayout]] = {
    "metadata_storm": four_jobs,
    "leaf_congested": crossing_jobs,
    "leaf_lost": crossing_jobs,
    "fabric_stalls": crossing_jobs,
    "power_capped": jobs_over_racks,
    "bad_batch": moving_job,
    "filesystem_full": saving_jobs,
    "quota_used_up": saving_jobs,
    "service_away": starting_jobs,
    "checkpoint_burst": reading_jobs,
    "one_spine": jobs_over_spines,
    "requeued_again": preempting_jobs,
    **dict.fromkeys(_HISTORIES, histories),
    "heavy_stage": pipelined_job,
    "pipeline_stalls": pipelined_job,
    "hot_expert": experts_job,
    "node_never_joins": late_job,
}
#: What a program has to do for the fault to be met.
_RECIPES = {
    "nan_abort": Recipe(guards=True),
    "checkpoint_no_space": Recipe(saves_every=12),
    "checkpoint_straggler": Recipe(saves_every=12),
    "long_evaluation": Recipe(evaluates_every=15, evaluation_s=3.0, first_evaluates=True),
    "node_never_joins": Recipe(timeout_s=120.0),
}
#: Slow and common faults show later than a standstill does.
_AFTER_S = {"uniform_regression": 120.0, "port_half_rate": 120.0, "metadata_storm": 150.0, "gpu_thermal": 120.0,
            "leaf_congested": 150.0, "power_capped": 150.0, "bad_batch": 270.0, "interpreter_pauses": 120.0,
            "uneven_lengths": 120.0, "heavy_stage": 120.0, "hot_expert": 120.0, "pcie_narrow": 120.0,
            "cores_taken": 120.0, "checkpoint_straggler": 120.0, "long_evaluation": 110.0, "wrong_results": 120.0,
            "node_never_joins": 150.0, "service_away": 150.0, "checkpoint_burst": 180.0, "one_spine": 150.0,
            "requeued_again": 260.0, **dict.fromkeys(_HISTORIES, (ROUNDS - 1) * ROUND_S)}  # fmt: skip
#: The same step must come once more after a restart.
_AT_S = {"bad_batch": 60.0, "node_never_joins": 1.0, "requeued_again": 60.0, "one_spine": 330.0,
         "service_away": SERVICE_AT_S, "filesystem_full": 80.0, "quota_used_up": 80.0,
         **dict.fromkeys(_HISTORIES, ROUND_S)}  # fmt: skip
#: Two at once, each in a job of its own: neither may explain the other.
_PAIRS = (("process_killed", "never_enters"), ("gpu_off_the_bus", "process_stopped"), ("exception", "gpu_clock_locked"))
#: Who looks is troubled as well, which changes nothing about the fault.
_UNDER_OBSERVATION = (("ranks_relabelled", "process_killed"), ("kernel_lines_lost", "gpu_memory_error"))
#: Beside what is wrong stands what looks so and is not.
_IN_COMPANY = ("process_killed", "never_enters", "slow_gpu", "uniform_regression", "gpu_off_the_bus")
_COMPANY = ("idle_port_flaps", "idle_clock_locked")


def _of(kind: FaultKind) -> Scenario:
    layout = _LAYOUTS.get(kind.name, one_job)
    scenario = Scenario(name=kind.name, sentence=kind.sentence, layout=layout, faults=(kind,))
    recipe = _RECIPES.get(kind.name, scenario.recipe)
    at_s, after_s = _AT_S.get(kind.name, ONSET_S), _AFTER_S.get(kind.name, AFTER_S)
    return replace(scenario, at_s=at_s, after_s=after_s, recipe=recipe)


def _together(
    names: Sequence[str], title: str, layout: Callable[[int, Recipe], ScenarioLayout], *, apart: bool
) -> Scenario:
    kinds = tuple(CATALOGUE[name] for name in names)
    return Scenario(
        name=title,
        sentence="; ".join(kind.sentence for kind in kinds),
        layout=layout,
        faults=kinds,
        after_s=max(_AFTER_S.get(name, AFTER_S) for name in names),
        apart=apart,
    )


SCENARIOS: dict[str, Scenario] = {
    HEALTHY: Scenario(name=HEALTHY, sentence="nothing goes wrong", layout=one_job),
    **{name: _of(kind) for name, kind in CATALOGUE.items()},
    **{title: _together(pair, title, two_jobs, apart=True) for pair in _PAIRS if (title := "+".join(pair))},
    **{
        title: _together((name, *_COMPANY), title, one_job, apart=False)
        for name in _IN_COMPANY
        if (title := f"{name}+harmless")
    },
    **{
        title: _together(pair, title, one_job, apart=False)
        for pair in _UNDER_OBSERVATION
        if (title := "+".join(reversed(pair)))
    },
    "process_killed+messages_repeat": _together(
        ("messages_repeat", "process_killed"), "process_killed+messages_repeat", one_job, apart=False
    ),
    "process_killed+clock_turned_back": _together(
        ("clock_turned_back", "process_killed"), "process_killed+clock_turned_back", one_job, apart=False
    ),
}
