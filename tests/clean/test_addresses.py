import re
from collections.abc import Sequence

import pytest

from stages.clean.masking import mask

ADDRESSES = r"""
host = "8.8.8.8"
HOST=93.184.215.14
connect(("93.184.215.14", 443))
socket.create_connection(("5.9.10.11", 25), timeout=3)
requests.get("http://45.33.32.156/index.html")
curl -s https://1.1.1.1/dns-query
url = "ftp://ftp:ftp@62.75.149.33/pub"
ssh root@93.184.215.14
scp build.tar.gz deploy@51.15.2.9:/srv/www
ping -c 3 8.8.4.4
nameserver 9.9.9.9
DNS1=208.67.222.222
93.184.215.14 www.python.org python
93.184.215.14 - - [10/Oct/1999:13:55:36 -0700] "GET / HTTP/1.0" 200 2326
Accepted publickey for root from 51.15.2.9 port 53318 ssh2
Received: from mail.python.org (mail.python.org [188.166.95.178])
X-Forwarded-For: 203.1.2.3, 70.41.3.18
    inet 51.15.2.9/32 scope global eth0
ALLOWED_HOSTS = ["51.15.2.9", "localhost"]
iptables -A INPUT -s 45.33.32.156 -j DROP
Deny from 45.33.32.156
server 93.184.215.14:8080 weight=5;
listen 51.15.2.9:443 ssl;
proxy_pass http://51.15.2.9:3000;
mongodb://admin:x@34.120.5.6:27017/test
"remote_addr": "70.41.3.18",
{"ip": "70.41.3.18", "version": 4}
client_version=3 client_ip=70.41.3.18
"ip_version": 4, "address": "70.41.3.18"
TLS version 1.3 handshake with host 70.41.3.18 failed
RFC 1035 resolver at 9.9.9.9
see section 4.2 for the server 70.41.3.18
the box is 70.41.3.18 now
print(lookup("70.41.3.18"))
assert geo("128.101.101.101").country == "US"
if addr == "70.41.3.18":
if peer != '70.41.3.18':
ip_range = "51.15.2.9-51.15.2.20"
ec2 = "ip-52.2.144.13"
node = "node-at-52.2.144.13"
[host]:51.15.2.9
8.8.8.8 is the resolver of Google
# 8.8.8.8
('8.8.8.8', 53)
<ip>70.41.3.18</ip>
peers: [70.41.3.18, 70.41.3.19]
VPN gateway: 70.41.3.18.
We reached 70.41.3.18. Then it failed.
whois 70.41.3.18; traceroute 70.41.3.18
2001:4860:4860::8888
AAAA record 2606:2800:220:1:248:1893:25c8:1946
http://[2606:2800:220:1:248:1893:25c8:1946]/
Session from 2.5.4.65:50022
upgraded the server 70.41.3.18 today
ROUTE 70.41.0.0/16 via 70.41.3.1
dig @9.9.9.9 python.org
"""
"""A line each; every address in it is one of somebody, made up or public."""

NUMBERS = r"""
ObjectIdentifier("2.5.4.65")
oid = "1.3.6.1"
OID_COMMON_NAME = (2, "2.5.4.3")
id_ce = x509.UnrecognizedExtension("2.5.29.37", value)
1.3.14.3.2.26 and 1.3.101.112
"2.5.29.15": "keyUsage",
§4.2.3.1
see § 7.1.1.2 of the standard
RFC 7231, section 7.1.1.1
(Section 8.4.3.5)
sections 3.1.3.6 and 3.1.3.7
# https://tools.ietf.org/html/rfc7518#section-4.7.1.1
Hyperspec 2.4.8.19
Clause 6.5.2.3, constraint 1
ISO/IEC 9899 6.5.2.3
Appendix 1.2.3.4
4.2.3.1 Introduction
   8.1.2.5 The header of the answer
## 3.1.4.1 Installing
.. _`3.1.3.6`: spec.html#Code
[3.3.2.4^1], lines with
pkg==1.2.3.4
pkg >= 1.2.3.4, != 1.2.5.1
install_requires=["pkg~=4.3.2.1"]
__version__ = "3.5.0.1"
VERSION = (4, "4.5.0.1")
version: 1.2.3.4
Version 11.2.0.4 of the database
parse_version("1.2.3.4")
FileVersion="6.1.7.2"
<assemblyIdentity version="6.0.1.1"/>
setVersion('2.1.0.7')
released 4.0.1.2 today
release-4.0.1.2
curl -O files/pkg-1.2.3.4.tar.gz
pkg-1.2.3.4-py3-none-any.whl
lib.so.1.2.3.4
libfoo.so.1.2.3.4 -> libfoo.so
User-Agent: Firefox/3.6.1.2
Mozilla/5.0 Chrome/9.0.5.1 Safari
OS-release: 5.10.102.1-microsoft-standard-WSL2
"oracle-ee": "11.2.0.4.v3"
Guile 3.0.5.130-5a1e7
1.4.2.1 (2021-03-04)
firmware 2.14.0.9
driver version is "27.21.14.5"
contract = join(ref, "1.0.0.0")
numpy 1.2.3.4rc1
Changes in version 1.1.0.1:
<PackageReference Include="Foo" Version="7.4.1.2" />
foo = { version = "1.0.95.2" }
gem "foo", "1.0.95.2"
"neptune": "1.3.2.1",
since 3.4.2.1 this is an error
net 4.7.2.1 or newer
"""
"""A line each; nothing in it is an address."""


LISTS_OF_ADDRESSES = r"""
8.8.8.8 Google DNS
8.8.4.4 Google DNS, the second
# 9.9.9.9 Quad9

93.184.215.14 Example
5.9.10.11 Hetzner

5.9.10.11 Hetzner
93.184.215.14 Example
4.2.2.1 Level 3

Name servers:
    4.2.2.1 Level 3
    4.2.2.2 Level 3, the second

IP addresses of the mirrors:
* 5.9.10.11 Falkenstein
* 5.9.10.12 Falkenstein, the second
"""
"""Blocks; each line that begins with four numbers begins with an address."""

LISTS_OF_NUMBERS = r"""
4.2.2.1 Resolvers
4.2.2.2 Name servers
4.2.2.3 Addresses

The sections about servers:
4.2.2.1 Resolvers
4.2.2.2 Name servers

The server has changed. See the sections:
4.2.2.1 Resolvers

8.1.1.1 Requests
8.1.1.2 Responses from 93.184.215

1.1.1.1 Purpose
1.1.1.2 Scope

3.0.1.4 (2021-03-04)
3.0.1.3 (2021-02-01)

Servers of version 1:
1.2.3.4 Fixed a crash
1.2.3.3 Fixed a leak

93.184 Megabytes
5.9.10.11 Hetzner
"""
"""Blocks; no line begins with an address."""


def lines(text: str) -> list[str]:
    return text.strip("\n").split("\n")


def masked_in(line: str) -> list[str]:
    """The addresses of a line that are replaced."""
    masked = mask(f"first\n{line}\nlast", ["ip_addresses"])
    assert masked.found["ip_addresses"] == masked.text.count("<IP_ADDRESS>")
    return ["<IP_ADDRESS>"] * masked.found["ip_addresses"]


def count(line: str) -> int:
    """The addresses in a line of `ADDRESSES`."""
    return len(re.findall(r"\d+(?:\.\d+){3}(?![\d.]*\d)|2[0-9a-f]+:[0-9a-f:]{8,}", line))


def test_addresses_are_masked_and_numbers_that_only_look_like_them_stay() -> None:
    missed = {line: count(line) - len(masked_in(line)) for line in lines(ADDRESSES)}
    wrong = {line: len(masked_in(line)) for line in lines(NUMBERS)}
    addresses = sum(map(count, lines(ADDRESSES)))
    found = addresses - sum(missed.values())

    # Nothing around these tells what they are: of such numbers an address is assumed.
    unknowable = {'gem "foo", "1.0.95.2"', '"neptune": "1.3.2.1",', "since 3.4.2.1 this is an error"}
    unknowable |= {"net 4.7.2.1 or newer"}
    assert {line for line, times in missed.items() if times} == set()
    assert {line for line, times in wrong.items() if times} == unknowable
    assert found / addresses == 1.0
    assert found / (found + sum(wrong.values())) > 0.93


def blocks(text: str) -> list[str]:
    return text.strip("\n").split("\n\n")


@pytest.mark.parametrize("block", blocks(LISTS_OF_ADDRESSES))
def test_small_numbers_at_the_start_of_a_line_are_an_address_in_a_list_of_addresses(block: str) -> None:
    listed = [line for line in lines(block) if re.search(r"(\d+\.){3}", line)]

    assert len(masked_in(block)) == len(listed)


@pytest.mark.parametrize("block", blocks(LISTS_OF_NUMBERS))
def test_sections_and_releases_stay_also_next_to_words_about_addresses(block: str) -> None:
    assert masked_in(block) == []


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        (r'res += "\n@triton.jit\n"', r'res += "\n@triton.jit\n"'),
        (r'"\t@pytest.fixture\n"', r'"\t@pytest.fixture\n"'),
        (r"'\njane@mail.org\n'", r"'\n<EMAIL>\n'"),
        (r"'\n\nnina@mail.org'", r"'\n\n<EMAIL>'"),
        (r"DOMAIN\jane@mail.org", r"DOMAIN\<EMAIL>"),
        ("\\\nnina@mail.org", "\\\n<EMAIL>"),
        ("@triton.jit\ndef f(): ...", "@triton.jit\ndef f(): ..."),
    ],
)
def test_an_escape_before_a_decorator_or_an_address_is_no_part_of_it(text: str, expected: str) -> None:
    assert mask(text, ["emails"]).text == expected


@pytest.mark.parametrize(("before", "after"), [((), ("2001:db8::1", "10.0.0.1")), (("8.8.8.8",), ("127.0.0.1",))])
def test_what_is_not_public_stays_next_to_what_is(before: Sequence[str], after: Sequence[str]) -> None:
    text = " ".join([*before, *after])

    assert mask(text, ["ip_addresses"]).text == " ".join(["<IP_ADDRESS>" for _ in before] + [*after])
