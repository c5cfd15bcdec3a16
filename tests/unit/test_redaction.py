"""Secrets in what is to be stored are refused, redacted or kept, as the policy says."""

from __future__ import annotations

import copy

import pytest

from agentstore.errors import InvalidInput, InvalidJson, SecretRefused
from agentstore.redaction import REDACTED, Secrets

SECRET = "hunter2-is-not-a-good-password"  # noqa: S105 - it is the one to be found


def redact(value, **policy):
    return Secrets(**policy).apply("redact", value, "config")


def refuse(value, **policy):
    return Secrets(**policy).apply("refuse", value, "config")


@pytest.mark.parametrize(
    "key",
    [
        "api_key",
        "apiKey",
        "API-KEY",
        "apikey",
        "x-api-key",
        "OPENAI_API_KEY",
        "password",
        "db_password",
        "passwd",
        "pwd",
        "secret",
        "client_secret",
        "secret_key",
        "aws_secret_access_key",
        "access_token",
        "refresh-token",
        "session_token",
        "auth_token",
        "token",
        "Authorization",
        "proxy-authorization",
        "Cookie",
        "Set-Cookie",
        "private_key",
        "credentials",
    ],
)
def test_the_value_of_a_secrets_key_is_redacted_or_refused(key):
    assert redact({"model": "m", key: SECRET}) == {"model": "m", key: REDACTED}
    with pytest.raises(SecretRefused) as caught:
        refuse({"model": "m", key: SECRET})
    assert caught.value.path == f"config.{key}"


@pytest.mark.parametrize(
    "settings",
    [
        {"max_tokens": 4096},
        {"tokens": 12},
        {"total_tokens": 12, "token_count": 3},
        {"eos_token": "</s>", "pad_token_id": 0},
        {"tokenizer": "cl100k"},
        {"secretary": "Ada"},
        {"password_hint_shown": True},
        {"keys": ["a"], "key": "C major"},
        {"author": "Ada", "authentic": True},
        {"text": "the bearer of this letter"},
        {"text": "task-sk-1 and sk-short and AKIA"},
        {"url": "http://localhost:8000/path@home"},
        {"url": "postgresql://user@host:5432/db"},
        {"time": "12:30:45 user@host"},
    ],
    ids=lambda settings: next(iter(settings)),
)
def test_settings_that_only_look_alike_are_no_secrets(settings):
    assert refuse(settings) == settings
    assert redact(settings) == settings


@pytest.mark.parametrize(
    ("text", "left"),
    [
        ("Authorization: Bearer abcdefghijkl.mnop-qrst", "Authorization: [redacted]"),
        ("use sk-proj-abcdefghijklmnop1234 please", "use [redacted] please"),
        ("ghp_" + "a" * 36 + " pushed", "[redacted] pushed"),
        ("id AKIAIOSFODNN7EXAMPLE.", "id [redacted]."),
        ("xoxb-1234567890-abc", "[redacted]"),
        ("at postgresql://ada:s3cret@host/db", "at [redacted]host/db"),
        ("redis://:s3cret@host/0", "[redacted]host/0"),
        ("sk-aaaaaaaaaaaaaaaaaaaa, sk-bbbbbbbbbbbbbbbbbbbb", "[redacted], [redacted]"),
    ],
)
def test_a_secret_inside_text_is_cut_out_of_it_or_refused(text, left):
    assert redact(text) == left
    assert redact({"deep": [{"note": text}]}) == {"deep": [{"note": left}]}
    with pytest.raises(SecretRefused):
        refuse({"note": text})


def test_a_secret_is_found_at_any_depth_and_its_place_is_named():
    value = {"a": [1, {"b": ({"password": SECRET},)}]}
    assert redact(value) == {"a": [1, {"b": [{"password": REDACTED}]}]}
    with pytest.raises(SecretRefused) as caught:
        refuse(value)
    assert caught.value.path == "config.a[1].b[0].password"


@pytest.mark.parametrize("value", [{"password": SECRET}, ["x", "Bearer " + SECRET]])
def test_a_refusal_never_shows_the_secret_and_says_what_to_do(value):
    with pytest.raises(SecretRefused) as caught:
        refuse(value)
    said = f"{caught.value} {caught.value!r} {caught.value.args} {vars(caught.value)}"
    assert "hunter2" not in said
    assert "environment" in str(caught.value)


@pytest.mark.parametrize("nothing", [None, "", 0, False, [], {}])
def test_a_secrets_key_without_a_value_holds_no_secret(nothing):
    assert refuse({"api_key": nothing}) == {"api_key": nothing}


def test_a_secret_may_be_of_any_type():
    assert redact({"token": 12345, "credentials": {"user": "ada"}, "secret": ["a"]}) == {
        "token": REDACTED,
        "credentials": REDACTED,
        "secret": REDACTED,
    }


def test_what_was_handed_in_is_not_changed():
    value = {"a": [{"password": SECRET, "note": "Bearer " + SECRET}]}
    before = copy.deepcopy(value)
    redact(value)
    assert value == before


def test_keep_keeps_everything_as_it_is():
    value = {"password": SECRET, "note": ("Bearer " + SECRET,)}
    assert Secrets().apply("keep", value, "config") is value


def test_the_order_of_keys_stays():
    value = {"b": 1, "password": SECRET, "a": 2}
    assert list(redact(value)) == ["b", "password", "a"]


def test_an_application_can_name_keys_endings_and_patterns_of_its_own():
    policy = {
        "keys": frozenset({"pin"}),
        "endings": ("codeword",),
        "patterns": (r"room-\d+", r"(?i)INTERNAL-(\d)\1"),
    }
    value = {"PIN": "1", "night-code-word": "x", "note": "room-7, internal-33", "password": "p"}
    assert redact(value, **policy) == {
        "PIN": REDACTED,
        "night-code-word": REDACTED,
        "note": f"{REDACTED}, {REDACTED}",
        "password": "p",
    }


def test_a_policy_without_patterns_looks_at_keys_only():
    value = {"note": "Bearer " + SECRET, "password": SECRET}
    expected = {"note": "Bearer " + SECRET, "password": REDACTED}
    assert redact(value, patterns=()) == expected


@pytest.mark.parametrize("setting", ["on_config", "on_tool_logs"])
def test_an_action_that_nobody_knows_is_refused(setting):
    with pytest.raises(InvalidInput, match=setting):
        Secrets(**{setting: "redcat"})


def test_a_value_that_holds_itself_is_refused_and_not_followed_for_ever():
    value = []
    value += [value, value]
    with pytest.raises(InvalidJson, match="nested"):
        redact({"a": value})


@pytest.mark.parametrize("unit", ["a.", "a-", "://", "bearer ", "sk-"])
def test_the_time_to_look_grows_with_the_text_and_not_with_its_square(unit):
    text = unit * (600_000 // len(unit))
    assert len(redact(text)) > 0
