"""When jobs' accounts become sums: a week after a job was last heard of, whether it had incidents or not."""

from __future__ import annotations

from ..operator import Context
from .case_book import KEPT_NS, CaseBook
from .charged_accounts import Accounts

#: The timer at which it is asked which do, and how often.
FOLD, FOLD_NS, _NEXT = "fold", 24 * 3_600_000_000_000, "next"
#: Tables. The last one says whether that timer runs.
_ACCOUNTS, _SUMS, _FOLDING = "accounts", "account_sums", "folding"


def accounts_of(ctx: Context) -> Accounts:
    """The accounts of all jobs, in the context's tables."""
    return Accounts(ctx.state.table(_ACCOUNTS), ctx.state.table(_SUMS))


def begin_folding(ctx: Context, stamp_ns: int) -> None:
    """Sets the daily timer that folds old accounts of jobs into sums; does nothing if it is set.

    stamp_ns: Unix; the first time is a day later. To be called whenever an account is taken.
    """
    folding = ctx.state.table(_FOLDING)
    if folding.get(_NEXT) is None:
        folding.put(_NEXT, b"")
        ctx.set_timer(FOLD, stamp_ns + FOLD_NS)


def fold(ctx: Context, book: CaseBook) -> None:
    """At the daily timer: folds accounts of jobs unheard of for long into sums, and sets the timer again while any
    remain.

    Only jobs without incidents; those with some are folded when these are forgotten.
    """
    accounts = accounts_of(ctx)
    for job in accounts.to_fold(ctx.now - KEPT_NS):
        if not book.knows(job):
            accounts.fold_job(job, ())
    if accounts.are_there():
        ctx.set_timer(FOLD, ctx.now + FOLD_NS)
    else:
        ctx.state.table(_FOLDING).delete(_NEXT)
