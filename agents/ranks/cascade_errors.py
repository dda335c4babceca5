"""Which exceptions are what a *victim* of someone else's failure prints. A table and one search; pure.

A rank whose peer died reports a broken connection; in 11 of 19 kills that was the first thing anybody saw. Such an
exception never counts as a cause by itself. A new pattern is a line here with the place it was seen.
"""

from __future__ import annotations

import re

#: (pattern over "type: message", where it comes from). Lower case; matched anywhere.
VICTIM_PATTERNS: tuple[tuple[str, str], ...] = (
    (r"connection (was )?closed by (remote )?peer", "gloo: peer died or left"),
    (r"connection (was )?reset by peer", "gloo, NCCL sockets, TCPStore"),
    (r"connection refused", "rendezvous or store host gone"),
    (r"broken pipe", "gloo, TCPStore"),
    (r"socket (timeout|timed out|closed|is closed)", "TCPStore, NCCL bootstrap"),
    (r"timed out waiting \d+ ?ms for (recv|send)", "gloo time-out on the waiters"),
    (r"gloo.*timed? ?out|timed? ?out.*gloo", "gloo time-out on the waiters"),
    (r"wait timeout after \d+ ?ms", "TCPStore wait"),
    (r"(store|tcpstore|wait).{0,80}(timeout|timed out)", "store: a peer never published its key"),
    (r"watchdog caught collective operation timeout", "NCCL watchdog kills innocents"),
    (r"collective operation timeout", "NCCL watchdog"),
    (r"some nccl operations have failed or timed out", "NCCL watchdog tear-down"),
    (r"nccl communicator was aborted", "NCCL abort after a peer's failure"),
    (r"ncclremoteerror|remote process exited|ncclsystemerror", "NCCL: peer or network"),
    (r"ncclinternalerror.*(socket|connect|peer)", "NCCL: peer or network"),
    (r"failed to pass monitored_?barrier|monitored_?barrier.{0,200}(failed|timed out)", "gloo: a waiter's report"),
    (r"connectfullmesh failed", "gloo: a peer was gone while the group was formed"),
    (r"detected mismatch between collectives on ranks", "debug wrapper: reported by every member"),
    (r"application timeout caused pair closure", "gloo"),
    (r"(no route to host|network is unreachable|connect timeout)", "network between peers"),
    (r"the server socket has failed|failed to (recv|connect|send).{0,80}(store|peer|rank)", "TCPStore"),
    (r"enforce fail at .{0,200}gloo/transport", "gloo transport: peer sent what was not expected"),
    (r"distbackenderror|distnetworkerror|diststoreerror", "torch.distributed's own error types"),
    (r"(rendezvous|rdzv)\w*(connection|closed|timeout)\w*error", "torchelastic"),
)

_VICTIM = re.compile("|".join(f"(?:{pattern})" for pattern, _ in VICTIM_PATTERNS), re.DOTALL)
#: Longer texts are scripts printing state; the tell-tale words stand at the beginning.
_SEARCHED_CHARS = 2048


def is_communication_error(type_name: str, message: str) -> bool:
    """Whether an exception reads like the consequence of another rank's failure, as a broken connection does."""
    return _VICTIM.search(f"{type_name}: {message}"[:_SEARCHED_CHARS].lower()) is not None
