"""What is said of the job as a whole: training is done, or the job is started again. A line tells it, no step does."""

from __future__ import annotations

import re

from ..alike import asked_once

#: What trainers say when they are through; what came before it was outlived, what comes after it is taking down.
END = re.compile(
    r"\b(?:training|fine-?tuning|pre-?training|run|job)(?: loop| run| job)? (?:is |has |was |"
    r"process )?(?:now )?(?:all )?"
    r"(?:complete[d.]?\b(?! with errors)|finished(?! with errors)|done\b|ended (?:successfully|normally))|"
    r"\b(?:finished|completed|done) (?:with )?(?:the )?(?:training|fine-?tuning|pretraining)\b(?! (?:step|"
    r"epoch|iteration|batch))|"
    r"'train_runtime': |`?Trainer\.fit`? stopped: `?max_|\bafter training is done\b|"
    r"\breached max(?:imum)? (?:steps|iterations|epochs)\b|"
    r"\bsuccessfully (?:finished|completed) (?:training|the job|the run|all)\b|"
    r"\b(?:job|run|training|workload) (?:finished|completed|succeeded|exited) (?:successfully|"
    r"with (?:exit )?(?:code|status) 0|normally)\b|"
    r"\ball (?:ranks|workers|epochs|steps) (?:have )?(?:finished|completed|done)(?: successfully)?|"
    r"exiting program at iteration \d+",
    re.IGNORECASE,
)
#: Who starts the job anew says so: torchrun, schedulers, scripts around them. The first start is none.
ATTEMPT = re.compile(
    r"\b(?:restarting|will restart|restarted|starting again|relaunching|resubmitting|requeu(?:ed|"
    r"ing))\b.{0,60}\b(?:worker|group|job|training|"
    r"run|process|pod|attempt|container|trainer|step)|\[default\] worker group .{0,60}restart|"
    r"\b(?:attempt|restart|retry|try|incarnation|relaunch|restart_count|run)(?: (?:no\.?|number|"
    r"count))?[ #:=]{1,3}0*(?:[1-9]\d*)"
    r"(?:\s*(?:/|of)\s*\d+)?(?=\W*$|\s*(?:of|/|:|-|=|\)|\]|at|started|starting|begins?)\b|\s*[=\-:\])])",
    re.IGNORECASE,
)
FIRST_ATTEMPT = re.compile(r"\b(?:attempt|try|run)(?: (?:no\.?|number))?[ #:=]{1,3}0*1\b", re.IGNORECASE)


#: Lower case; without one of them nothing is said to be done, or to begin again.
DONE = (
    "complete",
    "finish",
    "done",
    "succe",
    "ended",
    "reached max",
    "stopped: ",
    "train_runtime",
    "exiting program",
    "exited",
)
AGAIN = (
    "restart",
    "attempt",
    "relaunch",
    "resubmit",
    "requeu",
    "starting again",
    "incarnation",
    "retry",
    "try ",
    "run ",
)


def is_end(text: str) -> bool:
    """Whether the line says that training is done."""
    return _speaks_of_an_end(text) and END.search(text) is not None


def is_new_attempt(text: str) -> bool:
    """Whether the line says that the job is started again; its first start does not count."""
    return _speaks_of_a_start(text) and ATTEMPT.search(text) is not None and FIRST_ATTEMPT.search(text) is None


@asked_once
def _speaks_of_an_end(text: str) -> bool:
    low = text.lower()
    return any(word in low for word in DONE)


@asked_once
def _speaks_of_a_start(text: str) -> bool:
    low = text.lower()
    return any(word in low for word in AGAIN)
