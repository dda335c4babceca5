"""Settings: file < environment < flags, and nothing misspelt goes unnoticed."""

from __future__ import annotations

from pathlib import Path

import pytest

from whichrank.commands.settings.settings import (
    ALL_SETTINGS,
    AgentOptions,
    HookLevel,
    RunSettings,
    SettingsError,
    ViewChoice,
    load_settings,
    print_settings,
)


@pytest.fixture(autouse=True)
def _nowhere(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.chdir(tmp_path)
    for key in {key for kind in ALL_SETTINGS for key in kind.model_fields}:
        monkeypatch.delenv(f"WHICHRANK_{key.upper()}", raising=False)
    monkeypatch.delenv("WHICHRANK_CONFIG", raising=False)


def test_defaults_need_no_file() -> None:
    settings, origins = load_settings(RunSettings, {})
    assert (settings.level, settings.view, settings.completion) == (HookLevel.events, ViewChoice.auto, True)
    assert set(origins.values()) == {"default"}


def test_flags_beat_environment_beats_file(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    (tmp_path / "whichrank.toml").write_text('level = "off"\nview = "none"\nkeep_rings = true\n')
    monkeypatch.setenv("WHICHRANK_LEVEL", "status")
    monkeypatch.setenv("WHICHRANK_VIEW", "lines")
    settings, origins = load_settings(RunSettings, {"view": ViewChoice.live})
    assert (settings.level, settings.view, settings.keep_rings) == (HookLevel.status, ViewChoice.live, True)
    assert origins["view"] == "flag"
    assert origins["level"] == "environment WHICHRANK_LEVEL"
    assert origins["keep_rings"] == "whichrank.toml:3"


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ('level = "off"\nlevle = "on"\n', "f.toml:2: unknown key 'levle'; did you mean 'level'?"),
        ("[zzz]\nout = 1\n", "f.toml:1: unknown key 'zzz'; known: kafka, kafka_client"),
        ('\nlevel = "loud"\n', "f.toml:2: level = 'loud'"),
        ("level = \n", "f.toml: not TOML"),
    ],
)
def test_a_mistake_in_the_file_is_named_with_its_line(tmp_path: Path, text: str, said: str) -> None:
    (tmp_path / "f.toml").write_text(text)
    with pytest.raises(SettingsError) as caught:
        load_settings(RunSettings, {}, Path("f.toml"))
    assert said in str(caught.value)


def test_a_mistake_in_the_environment_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("WHICHRANK_COMPLETION", "perhaps")
    with pytest.raises(SettingsError, match="environment WHICHRANK_COMPLETION: completion = 'perhaps'"):
        load_settings(RunSettings, {})


def test_the_capture_limit_takes_sizes_as_people_write_them(monkeypatch: pytest.MonkeyPatch) -> None:
    assert load_settings(RunSettings, {})[0].capture_limit == 2 << 30
    monkeypatch.setenv("WHICHRANK_CAPTURE_LIMIT", "500MB")
    assert load_settings(RunSettings, {})[0].capture_limit == 500_000_000
    assert load_settings(RunSettings, {"capture_limit": "1.5GiB"})[0].capture_limit == 3 << 29
    assert load_settings(RunSettings, {"capture_limit": "0"})[0].capture_limit == 0
    for wrong in ("1k", "-1", "much"):
        with pytest.raises(SettingsError, match="flag: capture_limit = "):
            load_settings(RunSettings, {"capture_limit": wrong})


def test_a_named_file_must_be_there() -> None:
    with pytest.raises(SettingsError, match=r"missing\.toml: cannot be read"):
        load_settings(RunSettings, {}, Path("missing.toml"))


def test_what_is_printed_reads_back_the_same(tmp_path: Path) -> None:
    settings, origins = load_settings(RunSettings, {"level": HookLevel.status, "out": Path("a b"), "native": False})
    (tmp_path / "again.toml").write_text(print_settings(settings, origins))
    assert load_settings(RunSettings, {}, Path("again.toml"))[0] == settings


def test_one_file_serves_every_command(tmp_path: Path) -> None:
    (tmp_path / "whichrank.toml").write_text('kafka = "there:9092"\nlevel = "off"\nspool_limit = "64MiB"\n')
    run, _ = load_settings(RunSettings, {})
    agent, origins = load_settings(AgentOptions, {}, Path("whichrank.toml"))
    assert (run.kafka, run.level) == ("there:9092", HookLevel.off)
    assert (agent.kafka, agent.spool_limit) == ("there:9092", 64 << 20)
    assert "level" not in origins


def test_the_file_of_the_current_folder_is_for_run_alone(tmp_path: Path) -> None:
    (tmp_path / "whichrank.toml").write_text('kafka = "there:9092"\n')
    assert load_settings(RunSettings, {})[0].kafka == "there:9092"
    assert load_settings(AgentOptions, {"kafka": "here:9092"})[1]["kafka"] == "flag"
    assert load_settings(AgentOptions, {"kafka": "here:9092"})[1]["spool_limit"] == "default"


def test_secrets_are_not_for_the_command_line_nor_for_files_of_others(tmp_path: Path) -> None:
    with pytest.raises(SettingsError, match="kafka_password: everybody can read it"):
        load_settings(RunSettings, {}, None, ["kafka_password=secret"])
    (tmp_path / "f.toml").write_text('kafka_password = "a"\n')
    (tmp_path / "f.toml").chmod(0o640)
    with pytest.raises(SettingsError, match=r"holds kafka_password, .*chmod 600"):
        load_settings(RunSettings, {}, Path("f.toml"))


def test_any_key_can_be_set_by_a_pair(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("WHICHRANK_KAFKA_PASSWORD", "a=b")
    pairs = ["kafka_sasl=SCRAM-SHA-512", "kafka_user=me", "kafka_tls=true"]
    agent, origins = load_settings(AgentOptions, {"kafka": "there:9092"}, None, pairs)
    kafka = agent.kafka_settings(client_id="agent")
    assert (kafka.sasl, kafka.user, kafka.password, kafka.tls, kafka.client_id) == (
        "SCRAM-SHA-512",
        "me",
        "a=b",
        True,
        "agent",
    )
    assert origins["kafka_user"] == "flag"
    assert "a=b" not in print_settings(agent, origins)


@pytest.mark.parametrize(
    ("flags", "pairs", "said"),
    [
        ({}, [], "no Kafka broker is named; give --kafka HOST:PORT or WHICHRANK_KAFKA"),
        ({"kafka": "a:1"}, ["kafka_sasl=PLAIN"], "SASL PLAIN asks for a user; give kafka_user and kafka_password"),
        ({"kafka": "a:1"}, ["kafka_sasl=GSSAPI", "kafka_user=me"], "'GSSAPI' is none of PLAIN"),
        ({"kafka": "a:1"}, ["kafka_tls_key=k"], "a client certificate needs its key"),
        (
            {"kafka": "a:1"},
            ["kafka_sasl=PLAIN", "kafka_user=me", "kafka_password_file=none"],
            "kafka_password_file none: No such file or directory",
        ),
        (
            {"kafka": "a:1"},
            ["kafak_user=me"],
            "--set kafak_user=me: unknown key 'kafak_user'; did you mean 'kafka_user'?",
        ),
        ({"kafka": "a:1"}, ["kafka_user"], "--set kafka_user: write --set KEY=VALUE"),
        ({"kafka": "a:1"}, ["spool_limit=3kB"], "spool_limit = '3kB': at least 1 MiB"),
    ],
)
def test_what_cannot_work_with_kafka_is_one_line(flags: dict[str, str], pairs: list[str], said: str) -> None:
    with pytest.raises(SettingsError) as caught:
        load_settings(AgentOptions, flags, None, pairs)
    assert said in str(caught.value)
    assert len(str(caught.value).splitlines()) == 1


def test_a_password_comes_from_a_file(tmp_path: Path) -> None:
    (tmp_path / "secret").write_text("word\n")
    (tmp_path / "secret").chmod(0o600)
    pairs = ["kafka_sasl=PLAIN", "kafka_user=me", f"kafka_password_file={tmp_path / 'secret'}"]
    agent, _ = load_settings(AgentOptions, {"kafka": "a:1"}, None, pairs)
    assert agent.kafka_settings().password == "word"


def test_a_run_needs_no_kafka() -> None:
    assert load_settings(RunSettings, {})[0].kafka == ""
