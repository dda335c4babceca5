"""What can be chosen of a node's collectors. Standard library only: settings are read before all else is loaded."""

from __future__ import annotations

from dataclasses import dataclass

ALL, NONE = "all", "none"
NAMES = (
    "gpu",
    "kernel_log",
    "network",
    "storage",
    "host",
    "processes",
    "scheduler",
    "versions",
    "bmc",
    "services",
    "topology",
    "job_logs",
    "checks",
)


@dataclass(frozen=True, slots=True, kw_only=True)
class NodeOptions:
    """What can be set of collectors.

    kernel_log: a file, "" the first of the usual ones. write_folders: absolute. versions_file: what was installed when
    last looked, "" from now on. topology_file: where each node stands. kubernetes_node_file: this one as JSON, "" none.
    site_checks: file with a site's own checks, "" none. check_command: of whichrank check, run every check_idle_s
    while no job is here (0: never). job_logs: patterns of files, beside what ranks have open as standard output and
    error. withheld: names of ``agents.privacy.withheld``; what does not leave the node.
    """

    collect: frozenset[str] = frozenset(NAMES)
    kernel_log: str = ""
    write_folders: tuple[str, ...] = ()
    versions_file: str = ""
    topology_file: str = ""
    kubernetes_node_file: str = ""
    job_logs: tuple[str, ...] = ()
    site_checks: str = ""
    check_command: tuple[str, ...] = ()
    check_idle_s: float = 0.0
    withheld: frozenset[str] = frozenset()


def names_of(words: str) -> frozenset[str]:
    """The collectors that ``words`` asks for: ``all``, ``none`` or names with commas between.

    Raises ValueError for an unknown name.
    """
    if words in (ALL, NONE):
        return frozenset(NAMES) if words == ALL else frozenset()
    names = frozenset(word.strip() for word in words.split(",") if word.strip())
    if unknown := sorted(names - set(NAMES)):
        raise ValueError(f"{', '.join(unknown)}: no collector; there are {', '.join(NAMES)}, or all, or none")
    return names
