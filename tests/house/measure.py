"""All that a program can count of the house, each with the places where it is counted."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from tests.house import docstrings, imports, names, sizes, untyped
from tests.house.tree import Module, classes, functions, modules

#: What was counted last.
RECORD = Path(__file__).with_name("counts.json")
#: Builders and tables of dashboards are long lists of panels, which are read as such.
_TABLES = "grafana."
#: The edges, where a type becomes JSON and comes back: a dictionary of anything is what they are for.
CODECS = frozenset(
    {
        "evaluation.bench.kept_documents",
        "commands.check.expectations_file",
        "commands.diagnose.flight_recorder_document",
        "commands.diagnose.job_log_document",
        "commands.goodput.account_document",
        "commands.otlp_out.sdk_objects",
        "commands.goodput.event_lines",
        "commands.run_folder.people_codec",
        "commands.run_folder.run_description",
        "processors.cluster.advice_table",
        "processors.cluster.case_row",
        "processors.cluster.shared.told",
        "processors.condition_document",
        "processors.entity.rules",
        "processors.entity.signal_facts",
        "processors.entity.surroundings",
        "processors.finding_document",
        "processors.job_owners",
        "processors.older_sentences",
        "processors.job.columns.packing",
        "processors.job.state.checkpoint_saves",
        "processors.job.state.emergency_save",
        "processors.job.state.finding_rows",
        "processors.job.state.rank_texts",
        "processors.job.state.state_rows",
        "processors.job.state.witness_rows",
        "processors.placement_document",
        "processors.told_finding",
    }
)


@dataclass(frozen=True, slots=True)
class Count:
    """What is wrong, place by place. of: among so many; most: so many may be wrong; needs_some: 0 of 0 is no figure."""

    name: str
    asked: str
    places: Sequence[str]
    of: int = 0
    most: int = 0
    needs_some: bool = False

    @property
    def is_ok(self) -> bool:
        return len(self.places) <= self.most


def measure() -> list[Count]:
    product = modules()
    sized = [module for module in product if not module.name.startswith(_TABLES)]
    return [*_of_imports(product), *_of_sizes(sized), *_of_types(product), *_of_names(product), *_of_docs(product)]


def _of_imports(product: list[Module]) -> list[Count]:
    files, folders = imports.files_graph(product), imports.folders_graph(product)
    rooms = imports.rooms_within("processors.job", files)
    pairs = [f"{name} -> {target}" for name, targets in sorted(rooms.items()) for target in sorted(targets)]
    return [
        Count("file circles", "no circle of files", _said(imports.circles(files)), len(files)),
        Count("folder circles", "no circle of folders", _said(imports.circles(folders)), len(folders)),
        Count(
            "job arrows",
            f"arrows between the rooms of processors/job <= 90, on {imports.floors(rooms)} floors",
            pairs,
            len(rooms),
            most=90,
        ),
    ]


def _said(circles: list[list[str]]) -> list[str]:
    return [" <-> ".join(circle) for circle in circles]


def _of_sizes(product: list[Module]) -> list[Count]:
    all_functions = sum(len(list(functions(module))) for module in product)
    all_classes = sum(len(list(classes(module))) for module in product)
    return [
        Count("large modules", f"no module over {sizes.MODULE_LINES} lines", sizes.large_modules(product),
              len(product)),
        Count("wide classes", f"no class over {sizes.CLASS_ATTRIBUTES} public attributes",
              sizes.wide_classes(product), all_classes),
        Count("long functions", f"no function over {sizes.FUNCTION_LINES} lines", sizes.large_functions(product),
              all_functions),
    ]  # fmt: skip


def _of_types(product: list[Module]) -> list[Count]:
    aliases = untyped.aliases_of(product)

    def places(folder: str) -> list[str]:
        inside = [m for m in product if m.name.startswith(f"{folder}.") and m.name not in CODECS]
        return list(untyped.untyped_places(inside, aliases))

    return [
        Count(f"untyped in {folder}", f"no dictionary of anything in {folder}/, past its codecs", places(folder))
        for folder in ("processors", "commands")
    ]


def _of_names(product: list[Module]) -> list[Count]:
    classes, named = names.repeated_classes(product), names.repeated_modules(product)
    return [
        Count("repeated classes", "names of classes are unique", [f"{n}: {', '.join(p)}" for n, p in classes.items()]),
        Count("repeated modules", "names of modules are unique, but for those listed",
              [f"{n}: {', '.join(p)}" for n, p in named.items()]),
    ]  # fmt: skip


def _of_docs(product: list[Module]) -> list[Count]:
    public = docstrings.public_functions(product)
    arrays = [each for each in public if docstrings.takes_arrays(each)]
    raising = [each for each in public if docstrings.raised_by(each)]
    found = docstrings.detectors(product)
    silent = [each.place for each in public if not each.doc]
    return [
        Count("no docstring", "public functions with a docstring >= 90 %", silent, len(public), most=len(public) // 10),
        Count("no shape", "functions that take arrays say shape and unit",
              [each.place for each in arrays if not docstrings.says_shape_and_unit(each)], len(arrays)),
        Count("no error", "functions that raise name the error",
              [each.place for each in raising if not docstrings.says_errors(each)], len(raising)),
        Count("no method", "detectors name their method or its source",
              [each.name for each in found if not docstrings.says_method(each)], len(found), needs_some=True),
    ]  # fmt: skip
