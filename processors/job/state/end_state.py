"""How ranks ended, and the job."""

from __future__ import annotations

from ..detectors.crash.crash_order import Ending


class EndState:
    """Of the job: signalled_ns, when it was asked to stop; finished_ns, exit_code: its end. 0: not yet.

    Of the attempt: endings, and when they were last put into order; raised: ranks of whose ends one or more are
    exceptions (not saved: ``endings`` say it).
    """

    def __init__(self) -> None:
        self.signalled_ns = 0
        self.finished_ns = 0
        self.exit_code = 0
        self.begin_attempt()

    def begin_attempt(self) -> None:
        """Forgets all endings, as a new attempt begins; the job's own end stays."""
        self.endings: list[Ending] = []
        self.endings_judged_ns = 0
        self.raised: set[int] = set()

    def put_back(self, endings: list[Ending]) -> None:
        """Takes endings as they were saved in place of all known."""
        self.endings = endings
        self.raised = {ending.rank for ending in endings if ending.sort == "exception"}
