"""Hooks against real ends: signatures that are checked, programs that write down their arguments, an API over HTTPS."""

from __future__ import annotations

import base64
import time
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from tests.commands.respond.parts import SECRET, FakeKubernetes, FakeSlurm, Receiver, incident
from whichrank.commands.respond.hooks import kubernetes as kubernetes_hook
from whichrank.commands.respond.hooks.kubernetes import Kubernetes
from whichrank.commands.respond.hooks.slurm import Commands, Slurm
from whichrank.commands.respond.hooks.webhook_hook import WebhookHook
from whichrank.commands.respond.planning.acts import Act, HookOperation, Why
from whichrank.commands.respond.planning.plan import act_of
from whichrank.telemetry.incident_reading import read_incident
from whichrank.telemetry.response_outcomes import Outcome


def act(operation: HookOperation, target: str, number: int = 1, **fields: Any) -> Act:
    return act_of(read_incident(incident(number, **fields)), "hook", operation, target, "restart_without_node")


# --- webhook ----------------------------------------------------------------------------------------------------------
def webhook(receiver: Receiver, secret: str = SECRET, tries: int = 5) -> WebhookHook:
    return WebhookHook(receiver.url, secret, tries=tries, timeout_s=5.0)


def test_a_signed_request_with_the_whole_document(receiver: Receiver) -> None:
    result = webhook(receiver).do(act(HookOperation.TELL, "x"))
    assert (result.outcome, receiver.bad) == (Outcome.DONE, [])
    ((headers, body, _),) = receiver.good
    assert (body["action"], body["document"]["suspects"][0]["node"]) == ("restart_without_node", "node-1")
    assert headers["webhook-id"]


def test_another_secret_is_found_out_and_not_tried_again(receiver: Receiver) -> None:
    result = webhook(receiver, "another").do(act(HookOperation.TELL, "x"))
    assert (result.outcome, receiver.bad, receiver.requests) == (Outcome.FAILED, ["a wrong signature"], 1)
    assert "401" in result.detail


def test_a_secret_in_the_schemes_own_form() -> None:
    receiver = Receiver(b"0123456789abcdef")
    assert (
        webhook(receiver, "whsec_" + base64.b64encode(b"0123456789abcdef").decode())
        .do(act(HookOperation.TELL, "x"))
        .outcome
        is Outcome.DONE
    )
    receiver.close()
    with pytest.raises(ValueError, match="not base64"):
        WebhookHook("http://127.0.0.1", "whsec_???", tries=1, timeout_s=1.0)


def test_a_server_that_fails_at_times_is_tried_again_with_the_same_id(receiver: Receiver) -> None:
    receiver.answers = [503, 500]
    began = time.monotonic()
    result = webhook(receiver).do(act(HookOperation.TELL, "x"))
    assert (result.outcome, result.detail, receiver.requests) == (Outcome.DONE, "200 after 3 tries", 3)
    assert time.monotonic() - began > 0.9, "the pauses grow"
    assert len(receiver.good) == 1


def test_a_server_that_only_fails_is_given_up(receiver: Receiver) -> None:
    receiver.answers = [503] * 9
    result = webhook(receiver, tries=2).do(act(HookOperation.TELL, "x"))
    assert (result.outcome, receiver.requests) == (Outcome.FAILED, 2)
    assert "503 after 2 tries" in result.detail


@pytest.mark.parametrize("status", [400, 404, 302])
def test_what_no_other_try_changes_is_not_tried_again_and_a_redirect_not_followed(
    receiver: Receiver, status: int
) -> None:
    receiver.answers = [status]
    result = webhook(receiver).do(act(HookOperation.TELL, "x"))
    assert (result.outcome, receiver.requests) == (Outcome.FAILED, 1)


def test_nobody_there_is_one_line_without_secrets() -> None:
    hook = WebhookHook("http://user:pass@127.0.0.1:9/hook?token=abc", SECRET, tries=2, timeout_s=1.0)
    result = hook.do(act(HookOperation.TELL, "x"))
    assert result.outcome is Outcome.FAILED
    for said in (result.detail, hook.describe(act(HookOperation.TELL, "x"))):
        assert "pass" not in said
        assert "abc" not in said
        assert "\n" not in said


# --- Slurm ------------------------------------------------------------------------------------------------------------
COMMANDS = Commands(
    drain=["scontrol", "update", "nodename={node}", "state=drain", "reason={reason}"],
    undrain=["scontrol", "update", "nodename={node}", "state=resume"],
    requeue=["scontrol", "requeue", "{job}"],
    show=["scontrol", "show", "node", "{node}"],
)


def test_a_node_is_drained_with_its_reason_as_one_argument(on_path: FakeSlurm) -> None:
    drain = act(HookOperation.DRAIN_NODE, "node-1", kind="rank_died")
    assert Slurm(COMMANDS).do(drain).outcome is Outcome.DONE
    reason = "reason=whichrank 0000000000000001 rank_died xid_79"
    assert on_path.calls("update") == [["update", "nodename=node-1", "state=drain", reason]]


def test_nothing_goes_through_a_shell(on_path: FakeSlurm, tmp_path: Path) -> None:
    hostile = replace(act(HookOperation.DRAIN_NODE, "node-1"), reason=f"x; touch {tmp_path}/owned $(id) `id` \"'")
    assert Slurm(COMMANDS).do(hostile).outcome is Outcome.DONE
    assert on_path.calls("update")[0][3] == f"reason={hostile.reason}"
    assert not (tmp_path / "owned").exists()


@pytest.mark.parametrize("target", ["ALL,", "n[1-9]", "n1 state=down", "", "-x"])
def test_a_target_that_is_no_node_calls_nobody(on_path: FakeSlurm, target: str) -> None:
    result = Slurm(COMMANDS).do(act(HookOperation.DRAIN_NODE, target))
    assert (result.outcome, result.why, on_path.calls()) == (Outcome.REFUSED, Why.NAME_UNSAFE, [])


@pytest.mark.parametrize(
    ("job", "ok"), [("17", True), ("17_3", True), ("train-x1", False), ("17,18", False), ("", False)]
)
def test_only_a_job_of_slurm_is_requeued(on_path: FakeSlurm, job: str, *, ok: bool) -> None:
    result = Slurm(COMMANDS).do(act(HookOperation.RESTART_JOB, job))
    assert (result.outcome is Outcome.DONE, on_path.calls()) == (ok, [["requeue", job]] if ok else [])


LOOKS = replace(COMMANDS, show_job=["scontrol", "-o", "show", "job", "{job}"])
EXCLUDES = replace(
    LOOKS,
    hold=["scontrol", "requeuehold", "{job}"],
    exclude=["scontrol", "update", "nodename={job}", "state=x", "excnodelist={nodes}"],
    release=["scontrol", "release", "{job}"],
)


@pytest.mark.parametrize(
    ("said", "outcome", "why"),
    [
        ("JobId=17 JobState=RUNNING StartTime=1000", Outcome.DONE, None),
        ("JobId=17 JobState=FAILED StartTime=1000", Outcome.DONE, None),
        ("JobId=17 JobState=PENDING Reason=BeginTime StartTime=4000000000", Outcome.ALREADY, None),
        ("JobId=17 JobState=RUNNING Restarts=1 StartTime=4000000000", Outcome.ALREADY, None),
        ("JobId=17 JobState=CANCELLED StartTime=1000", Outcome.REFUSED, Why.JOB_ENDED),
        ("JobId=17 JobState=COMPLETED StartTime=1000", Outcome.REFUSED, Why.JOB_ENDED),
        ("JobId=17 JobState=TIMEOUT StartTime=1000", Outcome.REFUSED, Why.JOB_ENDED),
        ("JobId=17 ArrayJobId=17 ArrayTaskId=3 JobState=RUNNING StartTime=1000", Outcome.REFUSED, Why.WHOLE_ARRAY),
        ("JobId=17 ArrayJobId=15 ArrayTaskId=3 JobState=RUNNING StartTime=1000", Outcome.DONE, None),
    ],
)
def test_a_job_that_slurm_or_a_person_has_dealt_with_is_left_alone(
    on_path: FakeSlurm, said: str, outcome: Outcome, why: Why | None
) -> None:
    on_path.put_job("17", said)
    result = Slurm(LOOKS).do(act(HookOperation.RESTART_JOB, "17"))
    assert (result.outcome, result.why) == (outcome, why)
    assert len(on_path.calls("requeue")) == (outcome is Outcome.DONE)


def test_a_job_leaves_a_node_out_in_place_of_a_drain(on_path: FakeSlurm) -> None:
    on_path.put_job("17", "JobId=17 JobState=RUNNING StartTime=1000 ExcNodeList=node-[7-8] NodeList=node-1")
    hook = Slurm(EXCLUDES)
    assert hook.can == {HookOperation.RESTART_JOB}
    without = replace(act(HookOperation.RESTART_JOB, "17"), leave_out=("node-1",))
    assert hook.do(without).outcome is Outcome.DONE
    assert [words[0] for words in on_path.calls()] == ["requeuehold", "update", "release"]
    assert on_path.calls("update")[0][-1] == "excnodelist=node-[7-8],node-1"
    assert hook.do(act(HookOperation.RESTART_JOB, "17")).outcome is Outcome.DONE
    assert [words[0] for words in on_path.calls()][3:] == ["requeue"], "nothing is to be left out"


def test_a_reboot_that_somebody_has_asked_for_is_not_called_off(on_path: FakeSlurm) -> None:
    mine = act(HookOperation.UNDRAIN_NODE, "node-1")
    on_path.put("node-1", "IDLE+DRAIN+REBOOT_REQUESTED", f"whichrank {mine.incident} rank_died")
    result = Slurm(COMMANDS).do(mine)
    assert (result.why, on_path.calls("update")) == (Why.CHANGED_BY_OTHERS, [])


def test_a_node_that_somebody_has_drained_is_left_as_it_is(on_path: FakeSlurm) -> None:
    on_path.put("node-1", "DOWN+DRAIN", "broken fan [root@2026-11-23]")
    result = Slurm(COMMANDS).do(act(HookOperation.DRAIN_NODE, "node-1"))
    assert (result.outcome, on_path.calls("update")) == (Outcome.ALREADY, [])
    assert "broken fan" in result.detail
    back = Slurm(COMMANDS).do(act(HookOperation.UNDRAIN_NODE, "node-1"))
    assert (back.outcome, back.why, on_path.calls("update")) == (Outcome.REFUSED, Why.CHANGED_BY_OTHERS, [])


def test_ours_is_given_back(on_path: FakeSlurm) -> None:
    hook = Slurm(COMMANDS)
    assert hook.do(act(HookOperation.DRAIN_NODE, "node-1")).outcome is Outcome.DONE
    assert hook.do(act(HookOperation.UNDRAIN_NODE, "node-1", 2)).why is Why.CHANGED_BY_OTHERS, "of another incident"
    assert hook.do(act(HookOperation.UNDRAIN_NODE, "node-1")).outcome is Outcome.DONE
    assert on_path.nodes()["node-1"]["State"] == "IDLE"


def test_a_controller_that_does_not_answer_is_one_line(on_path: FakeSlurm) -> None:
    on_path.fail()
    result = Slurm(COMMANDS).do(act(HookOperation.DRAIN_NODE, "node-1"))
    assert result.outcome is Outcome.FAILED
    assert "Unable to contact slurm controller" in result.detail
    absent = Slurm(replace(COMMANDS, requeue=["no-such-scontrol", "{job}"])).do(act(HookOperation.RESTART_JOB, "1"))
    assert (absent.outcome, absent.detail) == (Outcome.FAILED, "no-such-scontrol: No such file or directory")


def test_a_command_that_hangs_is_ended(on_path: FakeSlurm) -> None:
    on_path.slow(30.0)
    result = Slurm(COMMANDS, timeout_s=0.5).do(act(HookOperation.RESTART_JOB, "1"))
    assert result.outcome is Outcome.FAILED
    assert "has not ended within" in result.detail


# --- Kubernetes -------------------------------------------------------------------------------------------------------
JOB_PATH = "/apis/batch/v1/namespaces/{namespace}/jobs/{name}"


def hook_of(api: FakeKubernetes, folder: Path, ca: Path | None, token: str = FakeKubernetes.TOKEN) -> Kubernetes:
    (folder / "token").write_text(token + "\n")
    return Kubernetes(api.url, folder / "token", ca, JOB_PATH)


def test_a_node_is_cordoned_and_tainted_and_given_back(
    kubernetes: FakeKubernetes, certificate: Path, tmp_path: Path
) -> None:
    others = {"key": "nvidia.com/gpu", "effect": "NoSchedule"}
    kubernetes.add_node("node-1", taints=[others])
    hook = hook_of(kubernetes, tmp_path, certificate)
    assert hook.do(act(HookOperation.DRAIN_NODE, "node-1")).outcome is Outcome.DONE
    node = kubernetes.nodes["node-1"]
    ours = {"key": kubernetes_hook.TAINT, "value": f"{1:016x}", "effect": "NoSchedule"}
    assert (node["spec"]["unschedulable"], node["spec"]["taints"]) == (True, [others, ours])
    assert node["metadata"]["annotations"]["whichrank.io/reason"].startswith("whichrank 0000000000000001")
    assert hook.do(act(HookOperation.UNDRAIN_NODE, "node-1", 2)).why is Why.CHANGED_BY_OTHERS
    assert hook.do(act(HookOperation.UNDRAIN_NODE, "node-1")).outcome is Outcome.DONE
    assert node["spec"] == {"taints": [others]}
    assert node["metadata"]["annotations"] == {}


def test_a_change_in_between_is_not_lost(kubernetes: FakeKubernetes, certificate: Path, tmp_path: Path) -> None:
    kubernetes.add_node("node-1")
    changes = [{"taints": [{"key": "theirs", "effect": "NoExecute"}]}]
    kubernetes.meanwhile = lambda: kubernetes.change("node-1", **changes.pop()) if changes else None
    assert (
        hook_of(kubernetes, tmp_path, certificate).do(act(HookOperation.DRAIN_NODE, "node-1")).outcome is Outcome.DONE
    )
    assert [taint["key"] for taint in kubernetes.nodes["node-1"]["spec"]["taints"]] == ["theirs", kubernetes_hook.TAINT]
    assert [method for method, _, _ in kubernetes.requests] == ["GET", "PATCH", "GET", "PATCH"]


def test_a_node_that_somebody_has_cordoned_is_left_as_it_is(
    kubernetes: FakeKubernetes, certificate: Path, tmp_path: Path
) -> None:
    kubernetes.add_node("node-1", unschedulable=True)
    hook = hook_of(kubernetes, tmp_path, certificate)
    assert hook.do(act(HookOperation.DRAIN_NODE, "node-1")).outcome is Outcome.ALREADY
    assert hook.do(act(HookOperation.UNDRAIN_NODE, "node-1")).why is Why.CHANGED_BY_OTHERS
    assert kubernetes.nodes["node-1"]["spec"] == {"unschedulable": True}


def test_a_job_gets_the_advice_as_an_annotation(kubernetes: FakeKubernetes, certificate: Path, tmp_path: Path) -> None:
    path = "/apis/batch/v1/namespaces/team/jobs/gpt"
    kubernetes.jobs[path] = {"metadata": {"name": "gpt", "resourceVersion": "1"}}
    hook = hook_of(kubernetes, tmp_path, certificate)
    assert hook.do(act(HookOperation.MARK_JOB, "team/gpt#0123abcd")).outcome is Outcome.DONE
    assert kubernetes.jobs[path]["metadata"]["annotations"]["whichrank.io/advice"] == "restart_without_node"
    assert hook.do(act(HookOperation.MARK_JOB, "../../secrets/x")).why is Why.NAME_UNSAFE
    assert hook.do(act(HookOperation.MARK_JOB, "team/other")).outcome is Outcome.FAILED


def test_a_wrong_token_a_missing_node_and_a_foreign_certificate_are_one_line_each(
    kubernetes: FakeKubernetes, certificate: Path, tmp_path: Path
) -> None:
    drain = act(HookOperation.DRAIN_NODE, "node-1")
    assert "404" in hook_of(kubernetes, tmp_path, certificate).do(drain).detail
    assert "401" in hook_of(kubernetes, tmp_path, certificate, "stolen").do(drain).detail
    untrusted = hook_of(kubernetes, tmp_path, None).do(drain)
    assert untrusted.outcome is Outcome.FAILED
    assert "certificate" in untrusted.detail.lower()
    (tmp_path / "token").unlink()
    assert "No such file" in Kubernetes(kubernetes.url, tmp_path / "token", certificate, JOB_PATH).do(drain).detail
