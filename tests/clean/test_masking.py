import re
from collections.abc import Sequence

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from stages.clean.masking import EMAIL, EMAIL_NEEDED, IP_ADDRESS, IP_ADDRESS_NEEDED, any_in, key_patterns, mask

ALL = ["emails", "ip_addresses", "keys"]

# Put together here, so that no scanner takes this file for a leak.
AWS = "AKIA" + "QYLPMN5HHHFPZAM2"
GITHUB = "ghp" + "_" + "wWPw5k4aXcaT4fNP0UcnZwJUVFk6LO0pINUx"
SLACK = "xoxb-" + "34532454-" + "e039d02840a0b9379c"
PRIVATE = "-----BEGIN RSA PRIVATE " + "KEY-----\nMIIEow\nabc=\n-----END RSA PRIVATE KEY-----"


@pytest.mark.parametrize(
    ("text", "expected", "kind"),
    [
        ("by Jane <jane.doe@mail.org>", "by Jane <<EMAIL>>", "emails"),
        ("a@b.co, c@d.io", "<EMAIL>, <EMAIL>", "emails"),
        ("host = '8.8.8.8'", "host = '<IP_ADDRESS>'", "ip_addresses"),
        ("2001:4860:4860::8888 is DNS", "<IP_ADDRESS> is DNS", "ip_addresses"),
        ("connect('8.8.8.8:53')", "connect('<IP_ADDRESS>:53')", "ip_addresses"),
        ("http://93.184.215.14:8080/x", "http://<IP_ADDRESS>:8080/x", "ip_addresses"),
        ("host:93.184.215.14", "host:<IP_ADDRESS>", "ip_addresses"),
        ("ssh -L 80:8.8.8.8:80", "ssh -L 80:<IP_ADDRESS>:80", "ip_addresses"),
        ("::ffff:8.8.8.8", "::ffff:<IP_ADDRESS>", "ip_addresses"),
        ("8.8.8.8 127.0.0.1 2001:db8::1", "<IP_ADDRESS> 127.0.0.1 2001:db8::1", "ip_addresses"),
        ("alice@counterexample.com", "<EMAIL>", "emails"),
        ("bob@myexample.org", "<EMAIL>", "emails"),
        ("carol@contest.co.uk, dan@latest.dev", "<EMAIL>, <EMAIL>", "emails"),
        (f"key = '{AWS}'", "key = '<KEY>'", "keys"),
        (f"token = '{GITHUB}'  # ghp", "token = '<KEY>'  # ghp", "keys"),
        (f"slack('{SLACK}')", "slack('<KEY>')", "keys"),
        (f"KEY = '''{PRIVATE}'''\nx = 1", "KEY = '''<KEY>'''\nx = 1", "keys"),
        (f"aws_key = '{'a1B/' * 10}'", "aws_key = '<KEY>'", "keys"),
    ],
)
def test_each_kind_is_replaced_counted_and_off_when_it_is_off(text: str, expected: str, kind: str) -> None:
    masked = mask(text, ALL)

    assert masked.text == expected
    assert {name: count for name, count in masked.found.items() if count} == {kind: expected.count("<EMAIL>") or 1}
    assert mask(text, [name for name in ALL if name != kind]).text == text
    assert mask(text, [kind]).text == expected


@pytest.mark.parametrize(
    "text",
    [
        "user@example.com and @decorator and a @ b",
        "user@EXAMPLE.COM user@mail.example.org root@host.test x@y.invalid",
        "127.0.0.1 192.168.1.1 10.0.0.1 ::1 fe80::1",
        "version = '1.2.3.4.5' and 999.999.1.1",
        "v1.2.3.4 x.1.2.3.4 1.2.3.4rc1 1.2.3.4_5 tag:1.2.3.4.5 1.2.3.4.5:8",
        "pkg==8.8.8.8 pkg-8.8.8.8 8.8.8.8-beta 8.8.8.8=x 8.8.8.8.5",
        "10.0.0.1:80 http://127.0.0.1:8080/x localhost:192.168.1.1:22 01.02.03.04:5",
        "x[1::2] == y[::-1] and a::b and 12:30:45",
        "matrix @ vector.T",
        "def f(value: int) -> dict[str, str]:\n    return {'a': 'b'}\n",
        "sha = 'da39a3ee5e6b4b0d3255bfef95601890afd80709'",
    ],
)
def test_ordinary_code_private_addresses_and_documentation_stay(text: str) -> None:
    assert mask(text, ALL).text == text


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        (r'res += "\n@triton.jit\n"', r'res += "\n@triton.jit\n"'),
        (r"'\njane@mail.org\n'", r"'\n<EMAIL>\n'"),
        (r"'\n\nnina@mail.org'", r"'\n\n<EMAIL>'"),
        (r"DOMAIN\jane@mail.org", r"DOMAIN\<EMAIL>"),
        ("@triton.jit\ndef f(): ...", "@triton.jit\ndef f(): ..."),
    ],
)
def test_an_escape_before_a_decorator_or_an_address_is_not_part_of_it(text: str, expected: str) -> None:
    assert mask(text, ["emails"]).text == expected


JWT = "eyJhbGciOiJIUzI1NiJ9." + "eyJzdWIiOiIxMjM0NTY3ODkwIn0" + ".dozjgNryP4J3jVmNHl0w5N"
NPM = "//registry.npmjs.org/:_authToken=" + "npm_xxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxx"
OPENAI = "sk-proj-" + "a" * 20 + "T3Blbk" + "FJ" + "b" * 20


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        (f"Authorization: Bearer {JWT}", "Authorization: Bearer <KEY>"),
        (f"token={JWT};", "token=<KEY>;"),
        (f"{NPM}\n", "//registry.npmjs.org/:_authToken=<KEY>\n"),
        (f"openai.api_key = '{OPENAI}'", "openai.api_key = '<KEY>'"),
        (f"BEGIN\n{PRIVATE}\n{PRIVATE}", "BEGIN\n<KEY>\n<KEY>"),
        ("-----BEGIN PRIVATE " + "KEY-----\nno end", "-----BEGIN PRIVATE " + "KEY-----\nno end"),
    ],
)
def test_credentials_that_have_patterns_of_our_own_are_replaced(text: str, expected: str) -> None:
    assert mask(text, ALL).text == expected


@pytest.mark.parametrize(
    "unit",
    [
        "-----BEGIN RSA PRIVATE " + "KEY-----\n",
        "eyJ",
        "=eyJa",
        "//a/:_authToken= ",
        "//",
        "sk-",
        "aws",
        "a@a.",
        "1.",
        "8:",
        "1.1.1.1:",
        "8.8.8.8 ",
        "host 8.8.8.8\n",
        "\\na@a.",
    ],
)
def test_a_long_hostile_text_is_masked_like_a_short_one(unit: str) -> None:
    """With steps of the square of its length, the long one would take hours, and this test would never end."""
    short, long = (unit * (length // len(unit)) for length in (125_000, 4_000_000))

    assert set(mask(long, ALL).text) == set(mask(short, ALL).text)


AWS_KEY = re.compile(r"""aws.{0,20}(?:key|pwd|pw|password|pass|token).{0,20}['"][0-9a-zA-Z/+]{40}['"]""", re.IGNORECASE)
"""As the pattern for it, which the strategies cannot read, looks for it."""

NEEDS = [
    (pattern if isinstance(pattern, re.Pattern) else AWS_KEY, needed) for pattern, needed in key_patterns() if needed
]


@pytest.mark.parametrize(("pattern", "needed"), NEEDS)
@settings(max_examples=30)
@given(data=st.data())
def test_what_a_credential_needs_is_in_the_lower_case_of_each_text_with_it(
    pattern: re.Pattern[str], needed: Sequence[re.Pattern[str]], data: st.DataObject
) -> None:
    assert any_in(needed, data.draw(st.from_regex(pattern)).casefold())


@pytest.mark.parametrize(("pattern", "needed"), [(EMAIL, EMAIL_NEEDED), (IP_ADDRESS, IP_ADDRESS_NEEDED)])
@settings(max_examples=100)
@given(data=st.data())
def test_what_an_address_needs_is_in_each_text_with_it(
    pattern: re.Pattern[str], needed: Sequence[re.Pattern[str]], data: st.DataObject
) -> None:
    assert any_in(needed, data.draw(st.from_regex(pattern)))
