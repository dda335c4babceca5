"""Flight-recorder dumps: the injected ranks of real jobs, PyTorch's match states, PyTorch's whole dumps."""

from __future__ import annotations

import copy
import json
import pickle
import random
import re
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

from tests.scoreboard.score import Score, Scorer
from whichrank.diagnosis.flight_recorder.analysis import Diagnosis, analyse
from whichrank.diagnosis.flight_recorder.divergence import calls_by_sequence
from whichrank.diagnosis.flight_recorder.dump_facts import read_facts, write_facts
from whichrank.diagnosis.flight_recorder.dump_files import DumpFiles
from whichrank.diagnosis.flight_recorder.entry_matching import match_state
from whichrank.diagnosis.flight_recorder.process_groups import process_groups
from whichrank.diagnosis.flight_recorder.rank_dump import DumpEntry, decode_dump

TRACES = "nvidia-resiliency-ext/fr_traces"
JSON_TRACES = "nvrx/fr_json"
PAIRS = "pytorch-flight-recorder/match_pairs.jsonl"
WHOLE = "pytorch-flight-recorder/build_db_cases.jsonl"
_INJECTED = re.compile(r"Fault ranks: \[([\d, ]*)\]")

Dumps = Mapping[int, Any]


def read(dumps: Mapping[str, bytes]) -> Diagnosis:
    collected = DumpFiles(len(dumps))
    for name, data in dumps.items():
        collected.add(name, data)
    return analyse(collected.dumps)


def as_files(dumps: Dumps) -> dict[str, bytes]:
    return {f"nccl_trace_rank_{rank}": pickle.dumps(raw, protocol=2) for rank, raw in dumps.items()}


def injected_ranks(folder: Path, case: str) -> set[int] | None:
    log = folder / TRACES / case / "fault_injection.log"
    found = _INJECTED.search(log.read_text()) if log.exists() else None
    return {int(rank) for rank in found[1].split(",")} if found else None


def folder_cases(folder: Path) -> Iterator[tuple[str, set[int] | None, dict[str, bytes]]]:
    for case in sorted(path for path in (folder / TRACES).iterdir() if path.is_dir()):
        files = {path.name: path.read_bytes() for path in sorted(case.glob("_dump_*"))}
        yield case.name, injected_ranks(folder, case.name), files


def json_cases(folder: Path) -> Iterator[tuple[str, set[int] | None, dict[str, bytes]]]:
    for path in sorted((folder / JSON_TRACES).glob("*.json")):
        yield path.stem, injected_ranks(folder, path.stem), {path.name: path.read_bytes()}


def score_injected(
    cases: Callable[[Path], Iterator[tuple[str, set[int] | None, dict[str, bytes]]]],
) -> Callable[[Path], Score]:
    """Every injected rank is a row; a rank that is named and was not injected is a wrong row more."""

    def score(folder: Path) -> Score:
        right = total = changed_right = changed_total = 0
        wrong: list[str] = []
        for name, injected, files in cases(folder):
            if injected is None:
                wrong.append(f"{name}: no fault_injection.log says which ranks were injected")
                total += 1
                continue
            named = {suspect.rank for suspect in read(files).suspects}
            right += len(named & injected)
            total += len(injected | named)
            if named != injected:
                wrong.append(f"{name}: injected {sorted(injected)}, named {sorted(named)}")
            for label, changed, expected in changes(decoded(files), injected):
                diagnosis = read(as_files(changed))
                named = {suspect.rank for suspect in diagnosis.suspects}
                changed_right += len(named & expected)
                changed_total += len(expected | named)
                if named != expected:
                    wrong.append(f"{name}, {label}: injected {sorted(expected)}, named {sorted(named)}")
        return Score(right=right, total=total, wrong=wrong, changed=(changed_right, changed_total))

    return score


def decoded(files: Mapping[str, bytes]) -> dict[int, Any]:
    """Dumps by rank as plain values. The files are PyTorch's own; what they hold is read by our own reader."""
    from whichrank.diagnosis.flight_recorder.dump_files import dumps_in

    return {rank: raw for name, data in files.items() for rank, raw in dumps_in(name, data)}


def changes(dumps: dict[int, Any], injected: set[int]) -> Iterator[tuple[str, dict[int, Any], set[int]]]:
    """Mechanical changes that leave the answer as it is, but for the names of the ranks."""
    ranks = sorted(dumps)
    for seed in range(8):
        shuffled = random.Random(seed).sample(ranks, len(ranks))
        yield f"ranks permuted ({seed})", *permuted(dumps, dict(zip(ranks, shuffled, strict=True)), injected)
    yield "clocks of the nodes apart by minutes, another year", shifted(dumps), injected
    yield "states and ids as text", as_text(dumps), injected
    yield "process groups named by hashes", renamed(dumps), injected
    for rank in ranks:
        # A rank without a dump cannot be told from one that could not dump, so it is not counted either way.
        yield f"dump of rank {rank} missing", {one: raw for one, raw in dumps.items() if one != rank}, injected - {rank}


def permuted(dumps: Dumps, new: Mapping[int, int], injected: set[int]) -> tuple[dict[int, Any], set[int]]:
    """Ranks renamed throughout: members, and the places of senders and receivers in their groups."""
    changed: dict[int, Any] = {}
    for rank, raw in dumps.items():
        dump = copy.deepcopy(raw)
        old_members = {name: json.loads(config["ranks"]) for name, config in dump["pg_config"].items()}
        for name, config in dump["pg_config"].items():
            config["ranks"] = str(sorted(new[member] for member in old_members[name]))
        for entry in dump["entries"]:
            members = old_members.get(entry["process_group"][0], [])
            backend, _, text = entry["profiling_name"].partition(":")
            if entry["is_p2p"] and (found := re.fullmatch(r"(send|recv) (\d+)(->|<-)(\d+)", text)):
                places = [sorted(new[one] for one in members).index(new[members[int(found[k])]]) for k in (2, 4)]
                entry["profiling_name"] = f"{backend}:{found[1]} {places[0]}{found[3]}{places[1]}"
        changed[new[rank]] = dump
    return changed, {new[rank] for rank in injected}


def shifted(dumps: Dumps) -> dict[int, Any]:
    changed = copy.deepcopy(dict(dumps))
    for rank, dump in changed.items():
        for entry in dump["entries"]:
            entry["time_created_ns"] += 31_536_000_000_000_000 + (rank % 7 - 3) * 120_000_000_000
    return changed


def as_text(dumps: Dumps) -> dict[int, Any]:
    """As torch's JSON has it: counters as text, 0 for an unknown time."""
    changed = copy.deepcopy(dict(dumps))
    for dump in changed.values():
        dump["pg_status"] = {key: {k: str(v) for k, v in row.items()} for key, row in dump["pg_status"].items()}
        for entry in dump["entries"]:
            for key in ("record_id", "collective_seq_id", "p2p_seq_id", "pg_id"):
                entry[key] = str(entry[key])
            for key in ("time_discovered_started_ns", "time_discovered_completed_ns"):
                entry[key] = entry[key] or 0
    return changed


def renamed(dumps: Dumps) -> dict[int, Any]:
    changed = copy.deepcopy(dict(dumps))
    for dump in changed.values():
        for entry in dump["entries"]:
            entry["process_group"] = ("%08x" % (int(entry["process_group"][0]) * 2654435761 % 2**32), "undefined")
        dump["pg_config"] = {
            (hashed := "%08x" % (int(name) * 2654435761 % 2**32)): {**config, "name": hashed, "desc": "undefined"}
            for name, config in dump["pg_config"].items()
        }
    return changed


def score_pairs(folder: Path) -> Score:
    wrong: list[str] = []
    rows = [json.loads(line) for line in (folder / PAIRS).read_text().splitlines() if line.strip()]
    changed = 0
    for row in rows:
        expected = row["expected_match_state"]
        size = len(row["pg_members"][row["a"]["process_group"][0]])
        said = match_state(_one_entry(row["a"]), _one_entry(row["b"]), size).value
        if said != expected:
            wrong.append(f"{row['case']}: expected {expected}, said {said}")
        for side in "ab":
            row[side] = {**row[side], "profiling_name": row[side]["profiling_name"].replace("nccl:", "xccl:")}
            row[side] |= {"collective_seq_id": 10**6, "time_created_ns": 1, "record_id": "77", "pg_id": 3}
            for key in ("input_dtypes", "output_dtypes"):
                value = row[side].get(key)
                row[side][key] = ([value] if value else []) if isinstance(value, str) else value
        changed += match_state(_one_entry(row["a"]), _one_entry(row["b"]), size).value == expected
    return Score(right=len(rows) - len(wrong), total=len(rows), wrong=wrong, changed=(changed, len(rows)))


def _one_entry(raw: Mapping[str, Any]) -> DumpEntry:
    return decode_dump({"entries": [raw]}, 0, "", keep=1).entries[0]


def score_whole(folder: Path) -> Score:
    """Missing and culprit ranks, and each call with whether its members agree.

    PyTorch's analyser takes the first rank for right. Where two members differ and nobody else can tell, we name both,
    which counts as right if its culprit is one of them.
    """
    rows = [json.loads(line) for line in (folder / WHOLE).read_text().splitlines() if line.strip()]
    wrong = []
    changed = 0
    for row in rows:
        said = whole_answer(row["dumps"])
        if (reason := differs(said, row["expected"])) is not None:
            wrong.append(f"{row['case']}: {reason}")
        moved = {rank: {**dump, "entries": [_moved(entry) for entry in dump["entries"]]}
                 for rank, dump in row["dumps"].items()}  # fmt: skip
        changed += differs(whole_answer(moved), row["expected"]) is None
    return Score(right=len(rows) - len(wrong), total=len(rows), wrong=wrong, changed=(changed, len(rows)))


def _moved(entry: Mapping[str, Any]) -> dict[str, Any]:
    sequence = str(int(entry.get("collective_seq_id", 0)) + 41)
    return {**entry, "collective_seq_id": sequence, "time_created_ns": entry.get("time_created_ns", 0) + 10**15}


def whole_answer(dumps: Mapping[str, Any]) -> dict[str, Any]:
    collected = DumpFiles(len(dumps))
    collected.add("dumps.json", json.dumps(dumps).encode())
    diagnosis = analyse(collected.dumps)
    missing: set[int] = set()
    calls: list[dict[str, Any]] = []
    bad: set[tuple[Any, int]] = set()
    for state in diagnosis.states:
        missing |= set(state.missing_at(state.sequence)) if state.waits else set()
        if state.divergence is not None:
            bad.add((state.group.key, state.divergence.sequence))
        bad.update((state.group.key, state.open_calls[rank][0].sequence) for rank in state.not_finished)
    for group in process_groups(collected.dumps).values():
        for sequence, by_rank in calls_by_sequence(group).items():
            last = by_rank[min(by_rank)][-1]
            # PyTorch lets a call pass that members are missing from; it says so elsewhere.
            calls.append({"name": last.op, "pass_check": (group.key, sequence) not in bad})
    return {"culprits": {one.rank for one in diagnosis.suspects}, "missing": missing, "calls": calls}


def differs(said: Mapping[str, Any], expected: Mapping[str, Any]) -> str | None:
    culprits, missing = set(expected.get("culprit_ranks") or ()), set(expected.get("missing_ranks") or ())
    if missing and missing != said["missing"] | said["culprits"]:
        return f"missing ranks {sorted(missing)}, said {sorted(said['missing'] | said['culprits'])}"
    if bool(culprits | missing) != bool(said["culprits"]) or not culprits <= said["culprits"]:
        return f"culprits {sorted(culprits)}, said {sorted(said['culprits'])}"
    passed = [bool(call.get("pass_check")) for call in expected.get("collectives", ())]
    if all(passed) and not missing and len(said["calls"]) != expected.get("n_collectives", len(passed)):
        return f"{expected['n_collectives']} calls, said {len(said['calls'])}"
    if not all(passed) and all(one["pass_check"] for one in said["calls"]):
        return "a call whose members differ, said all agree"
    for call in expected.get("collectives", ()):
        if call.get("pass_check") and not any(
            one["name"] == call["name"] and one["pass_check"] for one in said["calls"]
        ):
            return f"{call['name']} {call['record_id']} agrees, said otherwise"
    return None


Verdict = tuple[Any, ...]


def verdict(diagnosis: Diagnosis) -> Verdict:
    """Whatever an incident says of it."""
    named = tuple((one.rank, one.finding, one.probability, one.because) for one in diagnosis.suspects)
    state = diagnosis.state
    place = None if state is None else (state.group.key, state.sequence)
    return (diagnosis.finding, diagnosis.kind, diagnosis.scope, diagnosis.confidence, named, diagnosis.silent, place)


def live_and_read(files: Mapping[str, bytes]) -> tuple[Verdict, Verdict]:
    """What the judge concludes of the facts that agents send, and what is concluded of the files."""
    collected = DumpFiles(len(files))
    for name, data in files.items():
        collected.add(name, data)
    facts = {rank: write_facts(dump) for rank, dump in collected.dumps.items()}
    live = analyse({rank: read_facts(text, rank, "") for rank, text in facts.items()})
    return verdict(live), verdict(analyse(collected.dumps))


def score_live(folder: Path) -> Score:
    """A row is a job whose verdict by facts is that by files, suspects, reasons and confidence alike."""
    rows = [(name, injected, files) for cases in (folder_cases, json_cases) for name, injected, files in cases(folder)]
    lines = (line for line in (folder / WHOLE).read_text().splitlines() if line.strip())
    rows += [(row["case"], None, {"dumps.json": json.dumps(row["dumps"]).encode()}) for row in map(json.loads, lines)]
    wrong: list[str] = []
    changed_right = changed_total = right = 0
    for name, injected, files in rows:
        live, read_now = live_and_read(files)
        right += live == read_now
        if live != read_now:
            wrong.append(f"{name}: live {live}, by files {read_now}")
        for label, changed, _ in changes(decoded(files), injected) if injected is not None else ():
            live, read_now = live_and_read(as_files(changed))
            changed_right, changed_total = changed_right + (live == read_now), changed_total + 1
            if live != read_now:
                wrong.append(f"{name}, {label}: live {live}, by files {read_now}")
    return Score(right=right, total=len(rows), wrong=wrong, changed=(changed_right, changed_total))


SCORERS: list[Scorer] = [
    Scorer(
        name="flight recorder, live facts",
        files=(f"{TRACES}/*", f"{JSON_TRACES}/*.json", WHOLE),
        ask="the verdict of the files, word for word",
        bar=1.0,
        score=score_live,
    ),
    Scorer(
        name="flight recorder, pickles",
        files=(f"{TRACES}/*",),
        ask="every injected rank named, 0 others",
        bar=1.0,
        score=score_injected(folder_cases),
    ),
    Scorer(
        name="flight recorder, JSON",
        files=(f"{JSON_TRACES}/*.json",),
        ask="every injected rank named, 0 others",
        bar=1.0,
        score=score_injected(json_cases),
    ),
    Scorer(name="match states", files=(PAIRS,), ask=">= 95 %", bar=0.95, score=score_pairs),
    Scorer(name="whole dumps", files=(WHOLE,), ask=">= 95 %", bar=0.95, score=score_whole),
]
