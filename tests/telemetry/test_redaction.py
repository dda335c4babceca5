"""What leaves the node holds no secret, and stays readable. All secrets here are made up."""

from __future__ import annotations

import random
import re
import string
import time
from collections.abc import Callable

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.made_up_secrets import FAKE, HARMLESS, SECRETS
from whichrank.telemetry import redaction
from whichrank.telemetry.redaction import REMOVED, mask, redact, redact_bytes, redact_command


def _text(form: str, secret: str) -> str:
    return form.format(secret)


@pytest.mark.parametrize(("form", "secret"), SECRETS)
def test_secrets_are_removed_and_the_rest_stays(form: str, secret: str) -> None:
    text = _text(form, secret)
    left = redact(text)
    assert secret not in left
    assert REMOVED in left
    assert len(secret) < 12 or secret[-10:] not in left
    # What stands before the secret can still be read.
    assert left.startswith(re.split(r"[{:=]", form)[0][:12])
    assert redact(left) == left, "a second time changes it"
    assert redact_bytes(text.encode()) == left.encode()


@pytest.mark.parametrize("line", HARMLESS)
def test_harmless_lines_stay_as_they_are(line: str) -> None:
    assert redact(line) == line


def test_the_examples_are_many_and_every_shape_has_one() -> None:
    assert len(SECRETS) >= 60
    assert len(HARMLESS) >= 60
    texts = [_text(form, secret) for form, secret in SECRETS]
    texts += ["AGE-SECRET" + "-KEY-1" + FAKE.upper(), "Private-Lines: 1\n" + FAKE]
    unused = [shape.name for shape in redaction.shapes() if not any(shape.pattern.search(text) for text in texts)]
    assert unused == []
    for text in texts:
        for shape in redaction.shapes():
            if shape.pattern.search(text):
                assert not shape.hints or any(hint in text.lower() for hint in shape.hints), (shape.name, text)


def test_rules_are_well_formed() -> None:
    names = redaction.names()
    assert [hint for shape in redaction.shapes() for hint in shape.hints if hint != hint.lower()] == []
    assert names.token_before.isdisjoint(names.token_model)
    assert names.words.isdisjoint(names.about)
    every = names.words | names.token_words | names.weak | {row.split()[-1] for row in names.rows}
    assert [word for word in every if not any(hint in word for hint in names.hints)] == []


def test_a_text_without_any_hint_is_read_forshapes_without_hints_only(monkeypatch: pytest.MonkeyPatch) -> None:
    assert redaction.shapes_without_hints()
    tried: list[str] = []
    watched = tuple(
        redaction.Shape(shape.name, shape.hints, _Watched(shape, tried))  # type: ignore[arg-type]
        for shape in redaction.shapes()
    )
    monkeypatch.setattr(redaction, "shapes", lambda: watched)
    monkeypatch.setattr(redaction, "shapes_without_hints", lambda: tuple(s for s in watched if not s.hints))
    assert redaction.redact("hw.id mlx5_3/1 on node-0007") == "hw.id mlx5_3/1 on node-0007"
    assert tried == [shape.name for shape in watched if not shape.hints]
    tried.clear()
    redaction.redact("https://node-0007")
    assert "password in a URL" in tried


class _Watched:
    """A shape's pattern, and a list of the shapes that were looked for."""

    def __init__(self, shape: redaction.Shape, tried: list[str]) -> None:
        self._shape, self._tried = shape, tried

    def sub(self, replace: Callable[[re.Match[str]], str], text: str) -> str:
        self._tried.append(self._shape.name)
        return self._shape.pattern.sub(replace, text)


def test_several_in_one_line() -> None:
    line = "login user=me password=hunter2, token=A8f9b2C3d4e5 https://me:hunter3@x.example/y step=3"
    assert redact(line) == (
        f"login user=me password={REMOVED}, token={REMOVED} https://me:{REMOVED}@x.example/y step=3"
    )


def test_json_stays_json() -> None:
    assert redact('{"api_key": "abc def", "x": 1}') == f'{{"api_key": "{REMOVED}", "x": 1}}'


@pytest.mark.parametrize(
    ("arguments", "left"),
    [
        (("train.py", "--hub-token", "a b", "--lr", "1"), ("train.py", "--hub-token", REMOVED, "--lr", "1")),
        (("--api-key=a b", "x"), (f"--api-key={REMOVED}", "x")),
        (("curl", "-u", "me:hunter2", "https://x.example"), ("curl", "-u", f"me:{REMOVED}", "https://x.example")),
        (("env", "HF_TOKEN=hunter2", "python"), ("env", f"HF_TOKEN={REMOVED}", "python")),
        (("--password", "--lr", "1"), ("--password", "--lr", "1")),
        (("--tokenizer", "gpt2", "--max-tokens", "4096"), ("--tokenizer", "gpt2", "--max-tokens", "4096")),
        (("git", "clone", "https://a:b3@x.example"), ("git", "clone", f"https://a:{REMOVED}@x.example")),
    ],
)
def test_command_lines(arguments: tuple[str, ...], left: tuple[str, ...]) -> None:
    assert redact_command(arguments) == left


FRAGMENTS = [
    *(form.replace("{}", FAKE) for form, _ in SECRETS[:40]),
    "password=", "token: ", '"', "'", "\\", "://", "@", ":", "=", "--", "-----BEGIN PRIVATE KEY-----", "\0", "\n", " ",
    "é", "\udcff", REMOVED, "curl -u ", "Bearer ", "sk-", "eyJ",
]  # fmt: skip


@settings(max_examples=300, deadline=None)
@given(st.lists(st.sampled_from(FRAGMENTS) | st.text(max_size=20), max_size=12).map("".join))
def test_any_text_is_settled_after_one_time(text: str) -> None:
    once = redact(text)
    assert redact(once) == once


def test_garbage_and_long_lines_take_linear_time() -> None:
    chance = random.Random(7)
    begin_s = time.process_time()
    garbage = chance.randbytes(200_000)
    assert isinstance(redact_bytes(garbage), bytes)
    for unit in (
        "a",
        "a=b=",
        "password=",
        "password='",
        "://a:",
        "-----BEGIN PRIVATE KEY-----",
        "curl -u ",
        'token:\\"',
    ):
        redact(unit * (300_000 // len(unit)))
    letters = "".join(chance.choices(string.ascii_letters + string.digits, k=1_000_000))
    assert redact(f"password={letters} x") == f"password={REMOVED} x"
    assert time.process_time() - begin_s < 20


SEEN = "hunter2hunter2hunter2"


@pytest.mark.parametrize(
    "text",
    [
        f"password\x1b[0m={SEEN}",
        f"pass\u200bword={SEEN}",
        f"pass\x00word={SEEN}",
        f"--password\x00{SEEN}\x00--other",
        f"password\u00a0=\u2003{SEEN}",
        f"\uff50\uff41\uff53\uff53\uff57\uff4f\uff52\uff44\uff1d{SEEN}",
        f"\x1b[31mpassword=\x1b[0m{SEEN}",
        "password=" + "\x1b[1m".join(("hunter2", "hunter2", "hunter2")),
        "ghp_\u200b" + "\u2060".join("0123456789abcdefABCDEF"),
        f"\x1b]8;;http://e\x1b\\password\x1b]8;;\x1b\\={SEEN}",
        f"password:\r\n{SEEN}",
        f'secret = \n   "{SEEN}" and more',
    ],
)
def test_what_is_not_shown_hides_no_secret(text: str) -> None:
    left = redact(text)
    assert REMOVED in left
    shown = re.sub(r"\x1b\[[0-9;]*m|[^\x20-\x7e\n]", "", left)
    assert "hunter2" not in shown
    assert "0123456789abcdef" not in shown
    assert redact(left) == left
    assert len(mask(text)) == len(text)


@pytest.mark.parametrize(
    "text",
    [
        "\x1b[32mepoch 3\x1b[0m: loss=0.25 token/s=4711 \x1b[1mpasswords rotated\x1b[0m",
        "LANG=C\x00PATH=/usr/bin\x00HOME=/root\x00",
        "gr\u00fc\u00dfe \u2014 \u4f60\u597d \U0001f680\ufe0f step 12",
        "credentials:\n  file: /etc/x\nsecrets:\n- one\n",
        "Password:\nPermission denied, please try again.",
    ],
)
def test_colours_and_other_alphabets_change_nothing(text: str) -> None:
    assert redact(text) is text
