"""Which shared causes come into question for the troubles of this moment, and what speaks for each: rules as code.

Every job is one unit: it was hit or it was not. Under a cause, a job that is exposed is hit with p1, and its suspects
stand where the cause is; by chance a job is hit with ``CHANCE``, and its suspects stand anywhere in it. So a cause that
names a narrow place earns more than a wide one, a wide one pays for every job in it that is well, and every cause pays
for being one of many.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Iterable, Sequence

from ....telemetry.incident_document import CountedBy, EvidenceRow
from ....telemetry.kind_sets import SPEED_KINDS
from .fitting import are_enough, is_lone, speaks_of, speaks_of_its_errors, together
from .landscape import RAIL
from .neighbours import actors_on
from .pairs import pairs
from .placements import Value
from .rules import Rule, rules_of
from .scene import YOUNG_S, Scene
from .scoring import CHANCE, Candidate, hit_or_not
from .signs import FAULTS, OF_LOAD, OF_ONE_LINK, Sign
from .troubles import Trouble

#: What a sign of the thing itself is worth: a fault that began shortly before; what only says that it is busy; what it
#: had long before anybody was hit.
SIGN, BUSY_SIGN, OLD_SIGN = 4.0, 1.5, 0.5
#: A sign that is older says little of what begins now.
RECENT_S = 900.0
#: One job is enough where the thing itself says so, and said it so shortly before or after.
ALONE_BEFORE_S, ALONE_AFTER_S = 300.0, 60.0
#: A job that begins takes so long at most to have come together.
STARTS_S = 900.0
#: A cause that was said already is kept unless another is clearly better.
SAID_ALREADY = 1.0
MAX_PER_RULE = 64
_SLOW = frozenset(kind.value for kind in SPEED_KINDS)


def all_candidates(scene: Scene) -> list[Candidate]:
    """Candidates of all rules that look at several jobs at one time; [] where no rule has enough jobs."""
    if not scene.is_shared():
        return []
    looks = (_places, _rails, _throttled, _full, _starting, _actors, pairs)
    found = [candidate for look in looks for candidate in look(scene)]
    return [_kept(scene, candidate) for candidate in found]


def hit_by(rule: Rule, trouble: Trouble) -> float:
    """Log-likelihood ratio of a job being hit by such a cause against being hit by chance."""
    unknown = rule.unknown_phase if rule.phases and not trouble.phase and not trouble.own else 0.0
    return math.log(rule.p1 / CHANCE) - unknown


def again(scene: Scene, rule: Rule, hit: Sequence[Trouble]) -> list[Trouble]:
    """Troubles of later attempts of jobs in ``hit``, in the same words: a restart that fails of the same is no other
    cause.

    rule: which they must fit.
    """
    if not scene.restarted:
        return []
    first = {t.job: t for t in hit if t.job in scene.restarted}
    fitting = scene.fitting(rule) if first else ()
    return [t for t in fitting if (h := first.get(t.job)) and h.attempt != t.attempt and h.words == t.words]


def _kept(scene: Scene, candidate: Candidate) -> Candidate:
    said = any(t.cause == [candidate.rule.name, candidate.value] for t in scene.troubles if t.id in candidate.covers)
    if not said:
        return candidate
    return Candidate(
        **{n: getattr(candidate, n) for n in Candidate.__slots__ if n != "prior"}, prior=candidate.prior + SAID_ALREADY
    )


def _well(scene: Scene, rule: Rule, value: Value, hit: set[str], onset: float) -> tuple[float, int]:
    """What speaks against it: jobs that are exposed and well, by how long that is known. And how many are exposed."""
    known = max(0.0, min(1.0, (scene.now - onset) / rule.patience_s))
    score, exposed = 0.0, len(hit)
    for attempt in scene.running.values():
        if attempt.job in hit or not attempt.ran_at(onset):
            continue
        under = scene.memory.landscape.counts(attempt).get(value, 0)
        if not under:
            continue
        exposed += 1
        weight = rule.inside if under == len(attempt.nodes) else 1.0
        score += weight * known * math.log1p(-rule.p1)
    return score, exposed


def _values(scene: Scene, rule: Rule, troubles: Iterable[Trouble]) -> list[Value]:
    """Those that suspects have, or, where nobody is suspected, that their jobs have."""
    found: set[Value] = set()
    for trouble in troubles:
        if trouble.nodes:
            found.update(v for node in trouble.nodes for v in scene.memory.landscape.values_of(node))
        else:
            found.update(scene.counts(trouble))
    return sorted(value for value in found if value[0] == rule.attribute)[:MAX_PER_RULE]


def _places(scene: Scene) -> Iterable[Candidate]:
    for rule in rules_of("place"):
        fitting = scene.fitting(rule)
        if not are_enough(rule, fitting) and not (rule.alone_with_sign and fitting):
            continue
        for value in _values(scene, rule, fitting):
            under = [t for t in fitting if scene.place(t, value) is not None]
            if rule.needs_symptom:  # what its own devices say, it says of where it stands
                under = [t for t in under if any(value in set(scene.memory.landscape.values_of(n)) for n in t.nodes)]
            hit = together(rule, under)
            enough = len({t.job for t in hit}) >= rule.min_jobs or any(_are_apart(scene, rule, value, t) for t in hit)
            if rule.needs_symptom and 2 * sum(_shows_symptom(rule, t) for t in hit) < len(hit):
                continue
            if enough or (hit and says_so_itself(scene, rule, value, hit)):
                yield _at_place(scene, rule, value, hit, is_alone=not enough)


def says_so_itself(scene: Scene, rule: Rule, value: Value, hit: Sequence[Trouble]) -> bool:
    """Whether the thing itself says that it is at fault, since just then, and the only job that is hit waits for such a
    thing.
    """
    if not rule.alone_with_sign or not all(_is_sure_of(rule, trouble) for trouble in hit):
        return False
    onset = min((t.onset for t in hit), default=scene.now)
    signs = scene.memory.signs.of(value[1], rule.signs, onset, rule.window_s)
    # A port also goes down with the node behind it, which nobody here may use: that makes no other job slow.
    is_slow = any(trouble.kind in _SLOW for trouble in hit)
    return any(
        sign.severity in FAULTS
        and onset - ALONE_BEFORE_S <= sign.since <= onset + ALONE_AFTER_S
        and not (is_slow and sign.name in OF_ONE_LINK)
        for sign in signs
    )


def _shows_symptom(rule: Rule, trouble: Trouble) -> bool:
    return trouble.own.get("condition") in rule.symptoms or speaks_of_its_errors(rule, trouble)


def _rails(scene: Scene) -> Iterable[Candidate]:
    """Ports of several nodes of different jobs that stand on one rail: each node has all rails, so it is the port that
    tells.
    """
    for rule in rules_of("rail"):
        by_rail: dict[str, list[Trouble]] = {}
        rails_of: dict[str, int] = {}
        for trouble in scene.fitting(rule):
            for node in trouble.nodes:
                labels = scene.memory.landscape.labels.get(node, {})
                rail = labels.get(f"{RAIL}{trouble.own.get('device', '').partition('/')[0]}")
                if rail:
                    by_rail.setdefault(rail, []).append(trouble)
                    rails_of[trouble.id] = sum(name.startswith(RAIL) for name in labels)
        for rail, fitting in sorted(by_rail.items()):
            hit = together(rule, fitting)
            if len({t.job for t in hit}) < rule.min_jobs or len({node for t in hit for node in t.nodes}) < 2:
                continue
            plain = _at_place(scene, rule, (rule.attribute, rail), hit)
            covers = {t.id: hit_by(rule, t) + math.log(max(2, rails_of[t.id])) for t in hit}
            yield Candidate(
                **{n: getattr(plain, n) for n in Candidate.__slots__ if n not in ("covers", "prior")},
                covers={**plain.covers, **covers},
                prior=plain.prior - math.log(max(1, len(scene.memory.landscape.rails()))),
            )


def _is_sure_of(rule: Rule, trouble: Trouble) -> bool:
    return trouble.phase in rule.phases or bool(trouble.own) or speaks_of_its_errors(rule, trouble)


def _are_apart(scene: Scene, rule: Rule, value: Value, trouble: Trouble) -> bool:
    """Several nodes of one job were lost, all of them there, while others of it elsewhere live."""
    if not is_lone(rule, trouble) or scene.counts(trouble).get(value, 0) == len(_nodes_of(scene, trouble)):
        return False
    return all(value in set(scene.memory.landscape.values_of(node)) for node in trouble.nodes)


def _nodes_of(scene: Scene, trouble: Trouble) -> Collection[str]:
    attempt = scene.attempts[trouble.id]
    return attempt.nodes if attempt is not None else ()


def _worth(signs: Iterable[Sign], onset: float) -> float:
    """What the best of them is worth; 0 for none."""
    worth = 0.0
    for sign in signs:
        is_new = sign.since >= onset - RECENT_S
        worth = max(worth, (SIGN if sign.severity in FAULTS else BUSY_SIGN) if is_new else OLD_SIGN)
    return worth


def _at_place(
    scene: Scene, rule: Rule, value: Value, hit: Sequence[Trouble], more: float = 0.0, *, is_alone: bool = False
) -> Candidate:
    onset = min(t.onset for t in hit)
    jobs = {t.job for t in hit}
    against, exposed = _well(scene, rule, value, jobs, onset)
    signs = scene.memory.signs.of(value[1], rule.signs, onset, rule.window_s)
    covers = {t.id: 0.0 for t in again(scene, rule, hit)}  # once more says no more
    covers |= {t.id: hit_by(rule, t) + (scene.place(t, value) or 0.0) for t in hit}
    apart = [t.id for t in hit if _are_apart(scene, rule, value, t)]
    for id_ in apart:
        covers[id_] += math.log(rule.p1 / CHANCE)  # that two nodes go at one time by chance is rarer than one
    return Candidate(
        rule=rule,
        value=value[1],
        covers=covers,
        against=against,
        prior=rule.prior
        + more
        + _worth(signs, onset)
        - math.log(scene.memory.landscape.number_of_values(value[0], scene.nodes)),
        onset=onset,
        exposed=exposed,
        jobs=frozenset(jobs),
        is_lone=bool(apart) or is_alone,
        words={"value": value[1], "attribute": value[0], "jobs": len(jobs)},
        evidence=_told_by(signs, value[1]),
    )


def _told_by(signs: Sequence[Sign], source: str) -> list[EvidenceRow]:
    return [
        EvidenceRow(
            signal=f"{sign.kind}.{sign.name}",
            source=source,
            time_s=sign.since,
            value=sign.severity,
            shows=sign.text,
            trust=sign.trust or None,
        )
        for sign in signs[:4]
    ]


def _throttled(scene: Scene) -> Iterable[Candidate]:
    """GPUs that are held back in one rack, and not elsewhere: counted in nodes, not in jobs."""
    for rule in rules_of("throttle"):
        fitting = scene.fitting(rule)
        if not fitting:
            continue
        throttled = scene.memory.signs.throttled(min(t.onset for t in fitting), rule.window_s)
        if len(throttled) < 2:
            continue
        in_use = {node for attempt in scene.running.values() for node in attempt.nodes} | throttled
        values_of = {node: set(scene.memory.landscape.values_of(node)) for node in in_use}
        for value in _values(scene, rule, fitting):
            inside = {node for node in in_use if value in values_of[node]}
            hit_nodes, outside = inside & throttled, in_use - inside
            if len(hit_nodes) < 2:
                continue
            base = (len(outside & throttled) + 0.5) / (len(outside) + 1.0)
            base = min(0.5, max(CHANCE, base))
            if base >= rule.p1:
                continue
            score = hit_or_not(len(hit_nodes), len(inside) - len(hit_nodes), rule.p1, base)
            hit = together(
                rule, (t for t in fitting if set(t.nodes) & inside or (not t.nodes and value in scene.counts(t)))
            )
            if len({t.job for t in hit}) < rule.min_jobs:
                continue
            plain = _at_place(scene, rule, value, hit)
            # The nodes say more than jobs that are well: a job is slowed by its slowest node, and few show it.
            yield Candidate(
                **{n: getattr(plain, n) for n in Candidate.__slots__ if n not in ("against", "prior", "evidence")},
                against=0.0,
                prior=plain.prior + min(0.0, score - 2.0 * len(hit)),
                evidence=[
                    EvidenceRow(
                        signal="gpu_throttled",
                        source=f"{rule.attribute} {value[1]}",
                        time_s=plain.onset,
                        value=f"{len(hit_nodes)} of {len(inside)} nodes",
                        shows=f"GPUs of {len(hit_nodes)} of the {len(inside)} nodes in use in {rule.attribute} "
                        f"{value[1]} are throttled, of the {len(outside)} others {len(outside & throttled)}",
                    )
                ],
            )


def _full(scene: Scene) -> Iterable[Candidate]:
    """No room: it is told by the words of the errors; a node's own disk is of one job."""
    for rule in rules_of("full"):
        fitting = [t for t in scene.fitting(rule) if speaks_of(rule, t)]
        for value in sorted({v for t in fitting for v in scene.counts(t) if v[0] == rule.attribute}):
            hit = together(rule, (t for t in fitting if value in scene.counts(t)))
            nodes = [frozenset(t.nodes) for t in hit]
            if len({t.job for t in hit}) < rule.min_jobs or (nodes[0] and len(set(nodes)) == 1):
                continue  # on one node it is that node's disk
            plain = _at_place(scene, rule, value, hit)
            yield Candidate(
                **{n: getattr(plain, n) for n in Candidate.__slots__ if n not in ("against", "covers")},
                against=0.0,  # who does not write now is well on a full file system
                covers={**plain.covers, **{t.id: math.log(rule.p1 / (CHANCE / 4)) for t in hit}},
            )


def _starting(scene: Scene) -> Iterable[Candidate]:
    """Jobs that fail while they start; who starts at the same time and is well speaks against it, who runs does not."""
    for rule in rules_of("init"):
        fitting = [t for t in scene.fitting(rule) if _is_starting(scene, t)]
        for value in sorted({v for t in fitting for v in scene.counts(t) if v[0] == rule.attribute}):
            hit = together(rule, (t for t in fitting if value in scene.counts(t)))
            jobs = {t.job for t in hit}
            is_alone = len(jobs) < rule.min_jobs
            if not hit or (is_alone and not says_so_itself(scene, rule, value, hit)):
                continue
            onset = min(t.onset for t in hit)
            started_well = [
                attempt
                for attempt in scene.memory.placements.running.values()
                if attempt.job not in jobs
                and onset - YOUNG_S <= attempt.begin <= onset + rule.window_s
                and scene.now - attempt.begin > rule.patience_s
            ]
            plain = _at_place(scene, rule, value, hit, more=1.5 if len(jobs) > 2 else 0.0, is_alone=is_alone)
            yield Candidate(
                **{n: getattr(plain, n) for n in Candidate.__slots__ if n not in ("against", "exposed")},
                against=len(started_well) * math.log1p(-rule.p1),
                exposed=len(jobs) + len(started_well),
            )


def _is_starting(scene: Scene, trouble: Trouble) -> bool:
    if trouble.kind == "rank_never_joined" or trouble.phase == "init":
        return True
    attempt = scene.attempts[trouble.id]
    young = attempt is None or trouble.onset - attempt.begin < STARTS_S
    return young and trouble.step <= 0 and not trouble.phase


def _actors(scene: Scene) -> Iterable[Candidate]:
    """Jobs that wait for a service, and one that asks it for more than all others together.

    One that waits is enough where the service's own servers count who asks, and say that they are at fault.
    """
    for rule in rules_of("actor"):
        fitting = scene.fitting(rule)
        if len({t.job for t in fitting}) < rule.min_jobs and not (rule.alone_with_sign and fitting):
            continue
        for actor in actors_on(scene, rule, fitting):
            value = (rule.attribute, actor.service)
            victims = together(rule, (t for t in fitting if t.job != actor.job and t.id in actor.correlation))
            jobs = frozenset(t.job for t in victims)
            is_alone = len(jobs) < rule.min_jobs
            is_told = actor.counted_by is CountedBy.SERVER and says_so_itself(scene, rule, value, victims)
            if not victims or (is_alone and not is_told):
                continue
            # Whom its bursts hit more than once, they hit each time; that says no more.
            covers = {t.id: 0.0 for t in fitting if t.job in jobs and t.id in actor.correlation}
            covers |= {t.id: hit_by(rule, t) + actor.llr(t.id) for t in victims}
            own = [t for t in fitting if t.job == actor.job]
            covers |= {t.id: math.log(rule.p1 / CHANCE) for t in own}
            onset = min(t.onset for t in victims)
            against, exposed = _well(scene, rule, value, set(jobs) | {actor.job}, onset)
            # A server that is asked for too much is slow, as a broken one is: that speaks for either.
            signs = scene.memory.signs.of(actor.service, rule.signs, onset, rule.window_s)
            burdened = [sign for sign in signs if sign.name in OF_LOAD]
            yield Candidate(
                rule=rule,
                value=actor.service,
                covers=covers,
                # Who does not read just now is not hit, so those who are well say little.
                against=max(against, -3.0),
                prior=rule.prior + actor.log_odds + _worth(burdened, onset) - math.log(max(1, len(scene.running))),
                onset=min(onset, actor.since),
                exposed=exposed,
                jobs=jobs,
                culprit=actor.job,
                is_lone=is_alone,
                words={
                    "value": actor.service,
                    "attribute": rule.attribute,
                    "jobs": len(jobs),
                    "actor": actor.job,
                    "share": actor.share,
                    "operation": actor.operation,
                    "counted_by": actor.counted_by.value,
                },
                evidence=[*actor.evidence, *_told_by(burdened, actor.service)],
            )
