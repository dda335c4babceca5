"""One run: which incident answers which fault, and what of it is right. Pure, over ``truth.json`` and documents."""

from __future__ import annotations

import math
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from .first_words import first_words
from .made_steps import steps_made, usual_step_s
from .onset import is_felt, onset_s
from .statistics import Told
from .story import Document, Story, Suspect, leading, read_stories

#: Clocks of nodes differ: so much earlier than its onset a fault may be seen.
EARLY_S = 1.0
#: Numbers of the catalogue whose cause is the program: no node may be taken away for it.
_OF_THE_PROGRAM = frozenset({"5", "7", "8", "9", "13", "17", "19", "23", "30", "31", "34", "35", "38", "J4"})
_CLASSES = ((15, "crash"), (24, "hang"), (35, "slow"), (38, "numeric"))
_DAY_S = 86_400.0


@dataclass(frozen=True, slots=True, kw_only=True)
class FaultScore:
    """One fault. delay_s: from its onset (``onset_s``) to the first word of the incident that answers it; inf: none.

    steps: the delay in steps that the job has made meanwhile; usual_steps: in such as it made before. condition: None
    where the truth asks for none, or where nothing in that run could tell it (``blind``). is_felt: of what is slow.
    """

    fault: str
    number: str
    group: str
    said: str
    delay_s: float = math.inf
    attributed_s: float = math.inf
    steps: float = math.inf
    usual_steps: float = math.inf
    top_1: bool = False
    top_3: bool = False
    scope: bool = False
    condition: bool | None = None
    is_felt: bool = True

    @property
    def detected(self) -> bool:
        """Whether any incident answers the fault."""
        return math.isfinite(self.delay_s)


@dataclass(frozen=True, slots=True, kw_only=True)
class RunScore:
    """How right a detector was in one run. pages_too_many: those beyond one for each fault. first_words: how many of
    these nobody could have kept back (``first_words``). wrong_nodes: blamed, and innocent.

    told: of each incident its confidence, and whether it was right; told_kinds: its kind.
    """

    scenario: str
    seed: int
    faults: tuple[FaultScore, ...]
    pages: int = 0
    pages_too_many: int = 0
    first_words: int = 0
    wrong_nodes: tuple[str, ...] = ()
    told: tuple[Told, ...] = ()
    told_kinds: tuple[str, ...] = ()
    gpu_days: float = 0.0
    out_of_time: bool = False

    @property
    def pages_to_spare(self) -> int:
        """Pages beyond one for each fault, and for each job struck before a fault that shows over several had shown."""
        return max(0, self.pages_too_many - self.first_words)

    @property
    def has_faults(self) -> bool:
        """Whether anything went wrong in the run."""
        return bool(self.faults)


def group_of(number: str) -> str:
    """The class of a fault by its number: "crash", "hang", "slow", "numeric", "inter-job", "observer" or "other"."""
    if number[:1] == "J":
        return "inter-job"
    if number[:1] == "O":
        return "observer"
    digits = re.match(r"\d+", number)
    place = int(digits[0]) if digits else 0
    return next((name for last, name in _CLASSES if 0 < place <= last), "other")


def score_run(truth: Mapping[str, Any], revisions: Iterable[Document], *, out_of_time: bool = False) -> RunScore:
    """The scores of one run. truth: as ``GroundTruth.as_json`` has it; revisions: all documents the detector published.

    out_of_time: the detector did not end; nothing that it said counts. Raises BadIncident for documents that cannot be
    read.
    """
    stories = [] if out_of_time else read_stories(revisions, truth["start_unix_ns"] / 1e9)
    asked = sorted((f for f in truth["faults"] if f["kinds"]), key=lambda f: float(f["at_s"]))
    stands = leading(stories)
    answers = _answers(asked, stands)
    scores = tuple(_scored(truth, fault, answer) for fault, answer in zip(asked, answers, strict=True))
    # A page that has merged before it was let go is none; what it merged into is one.
    pages = sum(story.paged for story in stories)
    paged_answers = {answer.id for answer in answers if answer is not None and _paged(answer, stories)}
    guilty = _guilty_nodes(truth["faults"])
    answered = {id(a): s.top_1 for a, s in zip(answers, scores, strict=True) if a is not None}
    judged = [story for story in stands if not story.is_telemetry or id(story) in answered]
    return RunScore(
        scenario=str(truth["scenario"]),
        seed=int(truth["seed"]),
        faults=scores,
        pages=pages,
        pages_too_many=pages - len(paged_answers),
        first_words=len(first_words(asked, answers, stories, concerns)),
        wrong_nodes=tuple(sorted({node for story in stories for node in story.blamed - guilty})),
        told=tuple(
            (story.confidence, answered.get(id(story), any(is_right(f, story) for f in asked))) for story in judged
        ),
        told_kinds=tuple(story.kind for story in judged),
        gpu_days=sum(
            float(job["gpus"]) * (job["end_ns"] - job["begin_ns"]) / 1e9 / _DAY_S for job in truth["jobs"].values()
        ),
        out_of_time=out_of_time,
    )


def is_right(fault: Mapping[str, Any], story: Story, *, among: int = 1) -> bool:
    """Whether the story's kind is one of the fault's, and its place right: the likeliest suspects, all that are as
    likely.

    among: where above 1, one of the first ``among`` suspects is enough. Where a job's doing is the truth, that job must
    be the culprit. Where nobody is at fault, nobody may be suspected; of a fault of the whole cluster, the cluster may.
    """
    if story.kind not in fault["kinds"]:
        return False
    if fault.get("culprit"):
        return story.culprits == {fault["culprit"]}
    if not any(fault.get(field) for field in ("ranks", "nodes", "devices")):
        return all(suspect.scope == fault["scope"] == "cluster" for suspect in story.suspects)
    if among > 1:
        return any(is_place(fault, suspect) for suspect in story.suspects[:among])
    likeliest = max((suspect.probability for suspect in story.suspects), default=0.0)
    first = [suspect for suspect in story.suspects if suspect.probability >= likeliest]
    return bool(first) and all(is_place(fault, suspect) for suspect in first)


def is_place(fault: Mapping[str, Any], suspect: Suspect) -> bool:
    """Whether the suspect is what the truth names, as narrow as the fault's scope: its rank, GPU, node or device."""
    scope = fault["scope"]
    if scope in ("rank", "application"):
        return suspect.rank in fault["ranks"]
    if scope == "gpu":
        return suspect.gpu in fault["devices"] or suspect.rank in fault["ranks"]
    if fault["nodes"]:
        return suspect.node in fault["nodes"]
    return suspect.id in fault["devices"]


def concerns(fault: Mapping[str, Any], story: Story) -> bool:
    """Whether the story may answer the fault: told after its onset, of one of its jobs (or of none).

    Telemetry incidents answer faults of the observer, and nothing else does.
    """
    if story.detected_s < float(fault["at_s"]) - EARLY_S:
        return False
    if story.is_telemetry != (group_of(fault["number"]) == "observer"):
        return False
    jobs = {fault["job"], *fault["victims"]} - {""}
    return not jobs or not story.jobs or bool(jobs & story.jobs)


def _answers(asked: Sequence[Mapping[str, Any]], stories: Sequence[Story]) -> list[Story | None]:
    """By fault. Who names everybody is not right: of n faults only the first n incidents count, repeats apart."""
    after = [story for story in stories if any(concerns(fault, story) for fault in asked)]
    counted: list[Story] = []
    answered: set[int] = set()
    for story in after:
        mine = {n for n, fault in enumerate(asked) if concerns(fault, story) and is_right(fault, story, among=3)}
        if mine and mine <= answered:
            continue  # the same again
        if not mine and any(concerns(fault, story) and story.kind in fault.get("signs", ()) for fault in asked):
            continue  # one job's part of what shows only over several
        answered |= mine
        counted.append(story)
    counted = counted[: len(asked)]
    answers: list[Story | None] = [None] * len(asked)
    for among in (1, 3, 0):
        for place, fault in enumerate(asked):
            for story in counted:
                fits = concerns(fault, story) and (not among or is_right(fault, story, among=among))
                if answers[place] is None and fits and not any(story is other for other in answers):
                    answers[place] = story
    return answers


def _scored(truth: Mapping[str, Any], fault: Mapping[str, Any], answer: Story | None) -> FaultScore:
    condition = "" if fault.get("blind") else fault.get("condition") or ""
    name, number = str(fault["fault"]), str(fault["number"])
    group = group_of(number)
    felt = group != "slow" or is_felt(truth, fault)
    if answer is None:
        missed = False if condition else None
        return FaultScore(fault=name, number=number, group=group, said="", condition=missed, is_felt=felt)
    felt_s = onset_s(truth, fault)
    delay_s = max(0.0, answer.detected_s - felt_s)
    return FaultScore(
        fault=name,
        number=number,
        group=group,
        said=answer.kind,
        delay_s=delay_s,
        attributed_s=max(0.0, answer.attributed_s - felt_s),
        steps=steps_made(truth, fault, felt_s, felt_s + delay_s),
        usual_steps=delay_s / usual_step_s(truth, fault),
        top_1=is_right(fault, answer),
        top_3=is_right(fault, answer, among=3),
        scope=answer.scope == fault["scope"],
        condition=answer.condition == condition if condition else None,
        is_felt=felt,
    )


def _paged(answer: Story, stories: Sequence[Story]) -> bool:
    """It, or one that has merged into it."""
    return answer.paged or any(story.paged and story.merged_into == answer.id for story in stories)


def _guilty_nodes(faults: Sequence[Mapping[str, Any]]) -> frozenset[str]:
    return frozenset(
        node
        for fault in faults
        if fault["number"] not in _OF_THE_PROGRAM and fault["scope"] in ("rank", "gpu", "node", "link", "storage")
        for node in fault["nodes"]
    )
