"""Secrets in what is to be stored are refused, redacted or kept, as the policy says."""

import base64
import copy
import hashlib
import html
import json
import re
import shlex
from urllib.parse import quote, quote_plus

import pytest

from agentstore.errors import InvalidInput, InvalidJson, SecretRefused
from agentstore.values.redaction import PREFIXES, REDACTED, Secrets

SECRET = "hunter2-is-not-a-good-password"  # noqa: S105 - it is the one to be found


DEFAULT = Secrets()


def redact(value, **policy):
    return (Secrets(**policy) if policy else DEFAULT).apply("redact", value, "config")


def refuse(value):
    return DEFAULT.apply("refuse", value, "config")


@pytest.mark.parametrize(
    "key",
    [
        "api_key", "apiKey", "API-KEY", "apikey", "x-api-key", "OPENAI_API_KEY", "password",
        "db_password", "passwd", "pwd", "secret", "client_secret", "secret_key",
        "aws_secret_access_key", "access_token", "refresh-token", "session_token", "auth_token",
        "token", "Authorization", "proxy-authorization", "Cookie", "Set-Cookie", "private_key",
        "credentials",
    ],
)  # fmt: skip
def test_the_value_of_a_secrets_key_is_redacted_or_refused(key):
    assert redact({"model": "m", key: SECRET}) == {"model": "m", key: REDACTED}
    with pytest.raises(SecretRefused) as caught:
        refuse({"model": "m", key: SECRET})
    assert caught.value.path == f"config.{key}"


@pytest.mark.parametrize(
    "settings",
    [
        {"max_tokens": 4096}, {"tokens": 12}, {"total_tokens": 12, "token_count": 3},
        {"eos_token": "</s>", "pad_token_id": 0}, {"tokenizer": "cl100k"}, {"secretary": "Ada"},
        {"password_hint_shown": True}, {"keys": ["a"], "key": "C major"},
        {"author": "Ada", "authentic": True}, {"text": "the bearer of this letter"},
        {"text": "task-sk-1 and sk-short and AKIA"}, {"url": "http://localhost:8000/path@home"},
        {"url": "postgresql://user@host:5432/db"}, {"time": "12:30:45 user@host"},
    ],
    ids=lambda settings: next(iter(settings)),
)  # fmt: skip
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
        ("at postgresql://ada:s3cret@host/db", "at postgresql://[redacted]@host/db"),
        ("redis://:s3cret@host/0", "redis://[redacted]@host/0"),
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


WORD = "Zq9hunterSECRET77xyzLMNOP"
B64 = base64.b64encode(b"me:" + WORD.encode()).decode()
MIXED = "A1b2" * 40
UUID = "0a1b2c3d-0a1b-2c3d-4e5f-0a1b2c3d4e5f"
NOISE = b"".join(hashlib.sha256(b"%d" % number).digest() for number in range(2_000))

KEYED = {
    "Password": WORD,
    "api key": WORD,
    "db.password": WORD,
    "Password:": WORD,
    "password ": WORD,
    "ｐａｓｓｗｏｒｄ": WORD,
    "pass\u200bword": WORD,
    "to\u212aen": WORD,
    "accessToken": WORD,
    "clientSecret": WORD,
    "id_token": WORD,
    "bearer_token": WORD,
    "github_token": WORD,
    "AWS_SESSION_TOKEN": WORD,
    "X-Api-Token": WORD,
    "csrf_token": WORD,
    "session_cookie": WORD,
    "cookies": {"sid": WORD},
    "passwords": [WORD],
    "secrets": {"x": WORD},
    "tokens": [WORD],
    "api_keys": [WORD],
    "password_hash": WORD,
    "pass": WORD,
    "DB_PASS": WORD,
    "passcode": WORD,
    "secret_key_base": WORD,
    "encryption_key": WORD,
    "signing_key": WORD,
    "webhook_secret": WORD,
    "PGPASSWORD": WORD,
    "client_secret_value": WORD,
    "x-amz-signature": WORD,
    "dsn": f"postgresql://u:{WORD}@h/db",
    "headers": [["Authorization", "Basic " + WORD], ["Accept", "text/html"]],
    "headers of objects": [{"name": "Authorization", "value": "Basic " + WORD}],
    "pairs": [["password", WORD]],
    "an object": {"name": "password", "value": WORD},
    "another": {"key": "api_key", "value": WORD},
}


@pytest.mark.parametrize("key", KEYED)
def test_a_secret_is_known_by_the_name_that_it_stands_under_or_beside(key):
    value = {"model": "m", key: KEYED[key]}
    cleaned = json.dumps(redact(value))
    assert WORD not in cleaned
    assert REDACTED in cleaned
    assert redact(value)["model"] == "m"
    with pytest.raises(SecretRefused) as caught:
        refuse(value)
    assert WORD not in str(caught.value)


SHAPED = {
    "basic": f"Authorization: Basic {B64}",
    "basic alone": f"sent Basic {B64} to it",
    "token": f"Authorization: Token {WORD}",
    "in a command": f"curl -H 'Authorization: Bearer {WORD}'",
    "short": "Bearer abc123def",
    "not breaking": f"Bearer\u00a0{WORD}",
    "on the next line": f"Bearer\n{WORD}",
    "quoted": f"Bearer '{WORD}'",
    "cookie": f"Cookie: session={WORD}",
    "set-cookie": f"Set-Cookie: sid={WORD}; HttpOnly",
    "JSON": json.dumps({"password": WORD}),
    "JSON of a word": json.dumps({"user": "ada", "password": "correct horse"}),
    "JSON in JSON": json.dumps(json.dumps({"api_key": WORD})),
    "a token in JSON": json.dumps({"refresh_token": WORD}),
    "assigned": f"password={WORD}",
    "environment": f"export OPENAI_API_KEY={WORD}",
    "YAML": f"  secret_key: {WORD}",
    "query": f"https://h/x?api_key={WORD}&token={WORD}",
    "user and password": f"https://me:{WORD}@h/x",
    "user alone": f"https://{WORD}@github.com/x",
    "password with a slash": f"https://me:a/{WORD}@h/x",
    "option": f"mysql -u me --password={WORD}",
    "short option": f"mysql -p{WORD}",
    "OpenAI": "sk-proj-" + MIXED[:60],
    "Anthropic": "sk-ant-api03-" + MIXED[:90],
    "after an underscore": "my_sk-" + MIXED[:24],
    "GitHub": "ghp_" + MIXED[:36],
    "GitHub, fine-grained": "github_pat_" + MIXED[:82],
    "GitLab": "glpat-" + MIXED[:20],
    "Google": "AIza" + MIXED[:35],
    "AWS": "AKIAIOSFODNN7EXAMPLE",
    "AWS, temporary": "ASIAABCDEFGHIJKLMNOP",
    "Stripe": "sk_live_" + MIXED[:24],
    "Stripe, restricted": "rk_live_" + MIXED[:24],
    "JWT": f"eyJhbGciOiJIUzI1NiJ9.{MIXED[:40]}.{MIXED[:40]}",
    "npm": "npm_" + MIXED[:36],
    "Hugging Face": "hf_" + MIXED[:34],
    "Slack": "xoxb-" + "1" * 11 + "-" + MIXED[:24],
    "Slack, app": "xapp-1-" + MIXED[:24],
    "our own": "ask_" + "0a" * 6 + "_" + MIXED[:43],
    "PEM": f"-----BEGIN RSA PRIVATE KEY-----\n{WORD}\n-----END RSA PRIVATE KEY-----",
    "JWE": f"eyJhbGciOiJkaXIifQ..{MIXED[:16]}.{MIXED[:40]}.{MIXED[:22]}",
    "a JWT in base64": "ZXlK" + "aGJHY2lPaU" + MIXED[:60],
    "Telegram": f"12345678{9}:AA{MIXED[:33]}",
    "Telegram's address": f"https://api.telegram.org/bot12345678{9}:AA{MIXED[:33]}/getMe",
    "Discord": f"MTIzNDU2Nzg5MDEyMzQ1Njc4.{'G' + MIXED[:5]}.{MIXED[:38]}",
    "Discord's webhook": f"https://discord.com/api/webhooks/{'1234567890' * 2}/{MIXED[:68]}",
    "Teams' webhook": f"https://x.webhook.office.com/webhookb2/{UUID}@{UUID}/IncomingWebhook/"
    f"{'a1b2' * 8}/{UUID}",
    "Slack's webhook": f"https://hooks.slack.com/services/{MIXED[:44]}",
    "Facebook": f"{'1234567890' * 2}"[:16] + "|" + MIXED[:27],
    "Facebook's page": "EAAM" + MIXED[:110],
    "Square": "EAAA" + MIXED[2:50],
    "Airtable": f"pat{MIXED[:14]}.{'a1b2' * 16}",
    "Harness": f"pat.{MIXED[:22]}.{MIXED[:24]}.{MIXED[:20]}",
    "HubSpot": f"pat-na1-{UUID}",
    "Plaid": f"access-production-{UUID}",
    "Authress": f"authress_{'a1b2' * 3}.a1b2.acc_{'a1b2' * 3}.{MIXED[:40]}",
    "Cloudflare": f"v1.0-{'a1b2' * 6}-{'a1b2' * 36}a1",
    "ClickHouse": "4b1d" + MIXED[:38],
    "Artifactory": "AKCp" + MIXED[:69],
    "Artifactory's reference": "cmVmd" + MIXED[:59],
    "Twilio": "SK" + "a1b2" * 8,
    "Vault": "s." + MIXED[:24],
    "Resend": f"re_{MIXED[:8]}_{MIXED[:24]}",
    "Terraform": f"{MIXED[:14]}.atlasv1.{MIXED[:64]}",
    "MaxMind": f"{MIXED[:6]}_{MIXED[:29]}_mmk",
    "Azure AD": f"{MIXED[:3]}8Q~{MIXED[:31]}.",
    "Azure's account": f"AccountName=a;AccountKey={MIXED[:86]}==;EndpointSuffix=core",
    "Azure's bus": f"SharedAccessKeyName=a;SharedAccessKey={MIXED[:43]}=",
    "Azure's signature": f"https://a.blob.core/x?sv=2024-01-01&sig={MIXED[:30]}%2B{MIXED[:12]}%3D&se=1",
    "AWS's signature": f"https://b.s3.amazonaws.com/x?X-Amz-Signature={'a1b2' * 16}",
    "GitLab's session": f"_gitlab_session={'a1b2' * 8}",
    "a user of curl": f"curl -u ada:{WORD} https://h/",
    "a user of curl, joined": f"curl -sSu ada:{WORD} https://h/",
    "a user of curl in quotes": f"curl --user 'ada:correct horse {WORD}' https://h/",
    "a user of curl without a password": f"curl -u '{WORD}:' https://h/",
    "aligned": f"password{' ' * 12}=> '{WORD}'",
    "a user of curl far on": f"curl -X POST \\\n  https://h/ \\\n  --user=ada:{WORD}",
    "a header of curl": f'curl -H "X-Key: {WORD}" https://h/',
    "words in quotes in YAML": 'password: "correct horse battery"',
    "words in single quotes": "passphrase: 'correct horse battery'",
    "words in a shell": "export DB_PASSWORD='correct horse battery'",
    "a word of letters in a shell": "PASSWORD='" + "correct horse".title().replace(" ", "") + "'",
    "an option with words": "run --passphrase 'correct horse battery'",
    "an option with a word": f"run --api-key {WORD} --verbose",
    "the value of a tag": f'<add key="ClearTextPassword" value="{WORD}" />',
    "the value of an input": f'<input name="password" value="{WORD}">',
    "the value of an object": json.dumps({"name": "DB_PASSWORD", "value": WORD}),
    "the value of a list": f"- name: DB_PASSWORD\n  value: {WORD}",
    "a block in YAML": f"password: |\n  {WORD}",
    "digits": json.dumps({"password": int("12345678" + "90" * 4)}),
    "a subscript": f'os.environ["API_KEY"] = "{WORD}"',
    "signed headers": f"Authorization: AWS4-HMAC-SHA256 Credential={WORD}/x, SignedHeaders=host, "
    f"Signature={MIXED[:64]}",
    "digest": f'Authorization: Digest username="{WORD}", response="{WORD}"',
    "a cookie of several": f"Cookie: a=1; session={WORD}; b={WORD}",
    "a password with quotes": json.dumps({"password": f'it\'s "{WORD}" \\ {WORD}'}),
    "a password with signs": f"password=x$1%,{WORD};{WORD}&{WORD}!(y)",
    "a password with an at sign": f"postgresql://ada:p@{WORD}@h/db",
    "a bearer in two parts": f"Bearer 12|{WORD}{WORD}",
    "a routable token": f"glpat-{MIXED[:30]}.01.{MIXED[:9]}",
    "a token with a hyphen": f"dapi{'a1b2' * 8}-2",
    "a key in base64": f"glc_{MIXED[:40]}+{MIXED[:20]}/{MIXED[:12]}==",
    "half a PEM": f"-----BEGIN PRIVATE KEY-----\n{WORD}",
}


SECRETS = (
    *(WORD, B64, MIXED[:8], "abc123def", "correct horse", "IOSFODNN7", "ABCDEFGH", "CorrectHorse"),
    *("a1B2", "a1b2", "A1B2", "0a0a", "1b2c", "12345678909"),
)


@pytest.mark.parametrize("shape", SHAPED)
def test_a_secret_is_known_by_its_shape_or_by_what_is_written_before_it(shape):
    text = f"before {SHAPED[shape]}"
    cleaned = redact({"note": text})["note"]
    assert REDACTED in cleaned
    assert cleaned.startswith("before ")
    assert not [secret for secret in SECRETS if secret in cleaned]
    with pytest.raises(SecretRefused):
        refuse({"note": text})


FILLERS = [f"{'0a' * 6}_{'a1B2' * 12}", *(part * 30 for part in ("a1B2", "a1b2", "A1B2"))]


def token(prefix):
    return next(
        prefix + filler
        for filler in FILLERS
        if redact(f"x {prefix}{filler} y") == f"x {REDACTED} y"
    )


def in_json(text):
    return json.dumps({"code": 1, "said": f"line\n{text}\n\tafter"}, indent=1)


SURROUNDINGS = {
    "plain": lambda text: f"line\n{text}\nafter",
    "JSON": in_json,
    "JSON of an assignment": lambda text: "line\\u003d" + text.replace("=", "\\u003d") + "\\nafter",
    "JSON in JSON": lambda text: json.dumps(in_json(text)),
    "JSON in JSON in JSON": lambda text: json.dumps([json.dumps([in_json(text)])]),
    "JSON in a URL": lambda text: f"https://h/?x={quote(in_json(text), safe='')}&after=1",
    "URL": lambda text: f"https://h/?line%3D{quote(text, safe='')}%20after",
    "URL of a form": lambda text: f"https://h/?x=line+{quote_plus(text)}%0Aafter",
    "URL in a URL": lambda text: f"https://h/?x={quote(quote('line=' + text + ' after'))}",
    "header": lambda text: f"X-Line: {text}\r\nX-after: 1\r\n",
    "shell": lambda text: f"echo {shlex.quote('line ' + text)} after",
    "shell with escapes": lambda text: f"printf 'line\\n{text}\\n\\tafter\\040'",
    "YAML": lambda text: f"line: |\n  {text}\nafter: 1\n",
    "YAML in quotes": lambda text: f"line: {json.dumps(chr(9) + text)}\nafter: 1\n",
    "HTML": lambda text: f"<p>line<br>{html.escape(text)}</p>after",
    "HTML in numbers": lambda text: f"line&#10;{''.join(map(numbered, text))}&#x3c;after",
    "HTML in an attribute": lambda text: f'<p title="line&NewLine;{html.escape(text)}">after</p>',
    "JSON in HTML": lambda text: html.escape(in_json(text)),
    "colour": lambda text: f"line\x1b[1;31m{text}\x1b[0m after",
    "colour in JSON": lambda text: json.dumps(f"line\x1b[31m{text}\x1b[m after"),
    "colour in a shell": lambda text: f"printf 'line\\e[31m{text}\\033[0m after'",
    "colour in the midst": lambda text: f"line {highlighted(text)} after",
    "repr of bytes": lambda text: repr(f"\xff\n{text}\n".encode() + b"\xffafter"),
    "repr of a text": lambda text: repr(f"line\x00{text}\n\tafter"),
    "repr of JSON": lambda text: repr(in_json(text).encode()),
}
WHOLE = {**SHAPED, **dict.fromkeys(PREFIXES)}


def numbered(letter):
    return letter if letter.isalnum() else f"&#{ord(letter)};"


def highlighted(text):
    """What a search shows in colour where it found the first three characters."""
    return f"\x1b[01;31m\x1b[K{text[:3]}\x1b[m\x1b[K{text[3:]}"


def read(text):
    """What is read where all that is escaped once, or several times, is undone."""
    for _ in range(6):
        text = re.sub(
            r"\\u00([0-9a-f]{2})|%([0-9A-F]{2})", lambda m: chr(int(m[1] or m[2], 16)), text
        )
        text = html.unescape(text).replace('\\"', '"').replace("\\\\", "\\")
    return re.sub(r"\x1b\[[0-9;]*[mK]", "", text)


def is_json(text):
    try:
        json.loads(text)
    except ValueError:
        return False
    return True


def is_refused(text):
    try:
        refuse(text)
    except SecretRefused:
        return True
    return False


@pytest.mark.parametrize("shape", WHOLE)
def test_a_secret_is_found_whatever_is_escaped_around_it(shape):
    secret, stays = WHOLE[shape] or token(shape), {}
    for around, surround in SURROUNDINGS.items():
        text = surround(secret)
        cleaned = redact(text)
        found = REDACTED in cleaned and not any(each in read(cleaned) for each in SECRETS)
        rest_stays = "after" in cleaned or shape == "half a PEM"
        if not (found and rest_stays and redact(cleaned) == cleaned):
            stays[around] = text, cleaned
        elif around in ("JSON", "JSON in JSON") and shape != "half a PEM" and not is_json(cleaned):
            stays[around] = text, f"no longer JSON: {cleaned}"
        elif not is_refused(text):
            stays[around] = text, "not refused"
    assert stays == {}


HARMLESS = [
    "The token limit is 4096 tokens, and the secret of a good password is its length.",
    "Forgot your password? The password must have 12 characters; the key is under the mat.",
    "Basic understanding of tokenization; a basic characterization; Token: a word or a part of it",
    "max_tokens=4096, total_tokens: 12345, token_count=7, tokens: 12, eos_token = '</s>'",
    "def f(token: str, password: str | None = None, *, api_key: SecretStr) -> None: ...",
    "api_key = settings.api_key; token = get_token2(user); password = os.environ['PG1PASSWORD']",
    "password=$PASSWORD1 token=${TOKEN_2} secret={{ secret_3 }} key=<your-key-1>",
    "0190c3b2-7e1a-7c3d-8f00-0123456789ab",
    "sha256 of it: " + hashlib.sha256(b"x").hexdigest(),
    "commit 4b1d" + hashlib.sha1(b"x").hexdigest()[4:],  # noqa: S324 - a commit's
    "see http://localhost:8000/path@home, https://ada@example.com/ and git@github.com:a/b.git",
    "redis://cache:6379/0 and http://[::1]:80/x@y",
    "Cookie: a sweet snack; it is 12:30:45 user@host",
    "task-sk-1, risk-averse-engineering-department, ask_me_later, flask-sqlalchemy-extension-9",
    "https://example.org/search?q=tokens&page=2#password",
    "data:image/png;base64," + base64.b64encode(NOISE).decode(),
    "天气 password 晴朗 token",
    r"C:\new\token\sk-learn\x41 and \nabla \textbf{a} \u12 %d %s 100%sure 5%25 &c; R&amp;D",
    r'{"a": "one\ntwo\tthree", "path": "C:\\temp\\secret", "said": "\"the password\" it is"}',
    "\x1b[32mPASSED\x1b[0m tests/unit/test_a.py::test_token[sk-1]\x1b[K",
    "index 4b1d0e5..9a0c1f2 100644; https://h/?id=0190c3b2-7e1a-7c3d-8f00-0123456789ab%20a+b",
    "docker run -u 1000:1000 --user app:app x; curl -u $USER:$PASSWORD -u user:<password> h",
    "curl https://example.org/ -H 'Accept: text/html' -o user:file1",
    "password: \"${PASSWORD}\" secret='<your secret>' passphrase: '{{ phrase }}' PASSWORD=\"$1\"",
    "| 1234567890123456 | 12:30:45 | 123456789:ABC | sig=short | signature=b64(x) |",
    "config.access-key-rotation, s.some_attribute_of_it, re_compile_all_patterns, pat.match, M.N.O",
    "authorization = request.headers.get('a'); authorization: Optional[str]; self.token_2 = f(x)",
    '<input type="password" name="password" placeholder="12 characters"> the secret value: a word',
    "EAAAAAAAAAAAAAAAAAAAAAAAAAAAA and EAAABBBB, SKU 12345, SK"
    + "A" * 40
    + ", fw_update_firmware_x",
    '{"tokens": ["The", " quick", " fox"], "token": "The", "logprob": -0.1}',
]


@pytest.mark.parametrize("text", HARMLESS)
def test_text_that_only_speaks_of_secrets_stays(text):
    assert redact({"note": [text]}) == {"note": [text]}


@pytest.mark.parametrize(
    "settings",
    [
        {"eos_token": "</s>", "pad_token": "<|endoftext|>", "mask_token": "[MASK]"},
        {"max_token": 5, "next_token": "the word", "tokens": ["The", " quick"]},
        {"pass": True, "auth": True, "tests": {"passed": "all 12 of them"}},
        {"name": "Ada", "value": "Lovelace", "headers": [["Accept", "text/html"]]},
        {"words": ["password", "reset"], "signature": "Yours, Ada"},
    ],
)
def test_names_that_may_hold_a_secret_keep_words_numbers_and_flags(settings):
    assert redact(settings) == settings


def test_a_key_that_is_a_secret_is_cut_out_and_none_takes_anothers_place():
    keys = ["ghp_" + MIXED[:36], "plain", "ghp_" + MIXED[1:37]]
    assert redact(dict.fromkeys(keys, 1)) == {REDACTED: 1, "plain": 1, f"{REDACTED} 2": 1}
    with pytest.raises(SecretRefused) as caught:
        refuse({"a": 1, "deep": {keys[0]: 1}})
    assert caught.value.path == "config.deep[key 0]"


def test_a_key_that_is_no_plain_word_is_named_by_its_place():
    with pytest.raises(SecretRefused) as caught:
        refuse({"my password\n\x1b[31m is hunter2, api_key": "x"})
    assert caught.value.path == "config[key 0]"


UNITS = [
    "a.", "a-", "://", "bearer ", "sk-", "password=", 'password":"', "password: a", "token:",
    "basic ", "authorization:", "cookie: a", "-----BEGIN ", "-----BEGIN PRIVATE KEY-----",
    "mysql ", "eyJaaaaaaaaaaaa.", "https://a:", "https://aaaaaaaaaaaaaaaaaaaa1", "A" * 50 + "1",
    "\\", '"', "secret_key ", "eyJ", "ghp_", "basic a", "https://a:1@", "curl ", "curl -u ",
    "curl -u a", "curl\n", '-H "', "--header 'a", "sig=", "a-signature=", "-password ",
    "--password '", "password 'a", "password: '\\", 'password" value=', "password\nvalue",
    "/api/webhooks/1234567890/", "123456:A", "1" * 15 + "|", "MTAw", "sshpass -p ", "redis-cli ",
    "%25", "%2B+", "&amp;", "\\\\n", "\\n", "\\u005c", "\x1b[0m", "\x1b[", "'\"'\"'", "\\'\"",
    "password=a,", "password=a1,b", "authorization: a=b,", 'authorization: a="', "cookie: a=b;",
    "aaa1Q~", "s.", "-eyJ", "://a:@", "mysql a -", "password: |\n", "password=$1",
    "passwordpassword=",
]  # fmt: skip


@pytest.mark.timeout(20)
@pytest.mark.parametrize("unit", UNITS)
def test_a_long_text_that_is_as_costly_as_can_be_is_looked_through(unit):
    # The square of it would take minutes.
    redact(unit * (250_000 // len(unit)))
