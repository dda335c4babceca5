"""Tables of words: whose frames are the user's, whose exceptions are a victim's, which stacks parse."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

import whichrank
from whichrank.agents.base.user_frames import UserFrame, format_stack, innermost_user_frame, parse_stack
from whichrank.agents.evidence.stacks import parse_dump
from whichrank.agents.ranks.cascade_errors import VICTIM_PATTERNS, is_communication_error
from whichrank.agents.rings.crash_area import split_exception
from whichrank.telemetry.user_code import is_user_file

PACKAGE = Path(whichrank.__file__).parent


@pytest.mark.parametrize(
    ("file", "user"),
    [
        ("/home/me/train.py", True),
        ("train.py", True),
        ("/data/torch_models/net.py", True),
        ("/home/me/my_torch/nn/layers.py", True),
        ("<stdin>", True),
        ("/opt/venv/lib/python3.11/site-packages/torch/nn/modules/module.py", False),
        ("/usr/lib/python3/dist-packages/numpy/core.py", False),
        ("/usr/lib/python3.12/threading.py", False),
        ("/home/me/.pyenv/versions/3.11.7/lib/python3.11/selectors.py", False),
        ("/opt/python/lib64/python3.13t/json/decoder.py", False),
        ("/src/pytorch/torch/distributed/distributed_c10d.py", False),
        ("/src/pytorch/torch/_dynamo/eval_frame.py", False),
        ("/src/pytorch/torch/_tensor.py", False),
        ("<frozen runpy>", False),
        ("<eval_with_key>.3", False),
        ("", False),
        (str(PACKAGE / "instrumentation" / "phases.py"), False),
        (str(PACKAGE / "commands" / "demo" / "demo_training.py"), True),
        (str(PACKAGE / "tests" / "scenarios" / "job.py"), True),
        ("/home/me/instrumentation/trackers/phases.py", True),
    ],
)
def test_user_files(file: str, user: bool) -> None:
    assert is_user_file(file) is user


def test_innermost_user_frame_skips_what_lies_inside_libraries() -> None:
    frames = parse_stack(
        "/home/me/train.py\t10\tmain\n/home/me/model.py\t33\tforward\n"
        "/x/site-packages/torch/nn/modules/linear.py\t7\tforward\n"
    )
    assert innermost_user_frame(frames) == UserFrame("/home/me/model.py", 33, "forward")
    assert innermost_user_frame(frames[2:]) is None


def test_without_a_users_frame_the_frameworks_is_better_than_torchs() -> None:
    loop = UserFrame("/x/site-packages/lightning/pytorch/loops/fit_loop.py", 12, "advance")
    inner = UserFrame("/x/site-packages/torch/nn/modules/linear.py", 7, "forward")
    module = UserFrame("/home/me/module.py", 5, "training_step")
    assert innermost_user_frame((loop, inner)) == loop
    assert innermost_user_frame((loop, module, loop, inner)) == module


@given(st.text(max_size=400))
def test_any_text_is_a_stack_or_none(text: str) -> None:
    for frame in parse_stack(text):
        assert frame.line >= 0


def test_stacks_survive_the_round_trip() -> None:
    frames = (UserFrame("a.py", 1, "f"), UserFrame("b c.py", 22, "<module>"))
    assert parse_stack(format_stack(frames)) == frames


@pytest.mark.parametrize(
    ("text", "victim"),
    [
        ("RuntimeError: [../gloo/transport/tcp/pair.cc:534] Connection closed by peer [127.0.0.1]:42", True),
        ("RuntimeError: [pair.cc:525] Read error [::1]:39: Connection reset by peer", True),
        ("RuntimeError: Timed out waiting 5000ms for recv operation to complete", True),
        ("DistBackendError: NCCL error in: x.cpp:1234, remote process exited or there was a network error", True),
        ("torch.distributed.DistNetworkError: The client socket has timed out after 60000ms", True),
        ("BrokenPipeError: [Errno 32] Broken pipe", True),
        ("RuntimeError: [Rank 3] Watchdog caught collective operation timeout: WorkNCCL(SeqNum=5)", True),
        ("RuntimeError: Rank 1 failed to pass monitoredBarrier in 5000 ms", True),  # printed by a rank that waited
        ("RuntimeError: Gloo connectFullMesh failed with [pair.cc:144] no error", True),
        ("ValueError: bad shape", False),
        ("torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 2.00 GiB", False),
        ("RuntimeError: The size of tensor a (3) must match the size of tensor b (4)", False),
        ("KeyError: 'peer'", False),
        ("FileNotFoundError: [Errno 2] No such file or directory: 'x'", False),
        ("TimeoutError: data loader worker did not answer", False),
    ],
)
def test_victims(text: str, victim: bool) -> None:
    type_name, message = split_exception(text)
    assert is_communication_error(type_name, message) is victim


def test_every_victim_pattern_says_where_it_was_seen() -> None:
    assert all(pattern and source for pattern, source in VICTIM_PATTERNS)
    assert len({pattern for pattern, _ in VICTIM_PATTERNS}) == len(VICTIM_PATTERNS)


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("builtins.ValueError: bad: very", ("ValueError", "bad: very")),
        ("torch.OutOfMemoryError: CUDA", ("torch.OutOfMemoryError", "CUDA")),
        ("__main__.MyError: x", ("MyError", "x")),
        ("builtins.KeyboardInterrupt", ("KeyboardInterrupt", "")),
        ("a text without a type", ("Exception", "a text without a type")),
        ("two words: message", ("Exception", "two words: message")),
        ("", ("Exception", "")),
    ],
)
def test_exception_text(text: str, expected: tuple[str, str]) -> None:
    assert split_exception(text) == expected


def _thread(os_id: int, *functions: str) -> dict[str, object]:
    return {
        "os_thread_id": os_id,
        "thread_name": None,
        "owns_gil": os_id == 2,
        "frames": [{"name": name, "filename": f"{name}.py", "line": 3} for name in functions],
    }


def test_py_spy_dumps_give_the_main_thread_innermost_last() -> None:
    raw = json.dumps([_thread(2, "beat"), _thread(1, "inner", "outer")])
    main, text = parse_dump(raw, 1)
    assert [frame.function for frame in main] == ["outer", "inner"]
    assert "thread 2  (holds the GIL)" in text
    assert text.index("inner") < text.index("outer")


@pytest.mark.parametrize("raw", ["", "{}", "[]", "nonsense"])
def test_broken_dumps_are_errors(raw: str) -> None:
    with pytest.raises(ValueError):  # noqa: PT011
        parse_dump(raw, 1)
