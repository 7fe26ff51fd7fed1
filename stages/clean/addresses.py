"""E-mail and IP addresses in texts: what has their form, and which of it is an address of somebody.

Four numbers with points are an IPv4 address only by what is around them. Code and documentation are full of versions
(`pkg==1.2.3.4`), numbers of sections (`§4.2.3.1`) and object identifiers (`ObjectIdentifier("2.5.4.65")`). They are
told by what is next to the number, and by the last telling word before it on its line.
"""

import ipaddress
import re

EMAIL = re.compile(
    # A line break or the like, written as an escape, is no part of the name: `"\njane@mail.org"`, `"\n@name.of"`.
    r"(?:(?<=\\[abfnrtv])|(?<![\w.+-])(?<!\\(?=[abfnrtv])))"
    r"[A-Za-z0-9._%+-]{1,64}@(?:[A-Za-z0-9-]{1,63}\.)+[A-Za-z]{2,24}(?![\w-])"
)

# A colon may be on either side of an IPv4 address: a host before it, a port after it. What follows `oid:` (RFC 3061) or
# the epoch of a Debian version (`1:2.3.4.5`) is none, nor a heading with a colon (`3.8.2.4: `).
# Global unicast addresses of IPv6 begin with 2 or 3 (RFC 4291); three colons tell them from slices.
IP_ADDRESS = re.compile(
    r"(?=\d)(?<![\w.])(?:(?<![oO][iI][dD]:)(?<![^\w.]\d:)\d{1,3}(?:\.\d{1,3}){3}(?!:\s)"
    r"|(?<!:)[23][0-9a-fA-F]{3}:(?:[0-9a-fA-F]{0,4}:){2,6}[0-9a-fA-F]{0,4}(?!:))(?!\w|\.\d)"
)

RESERVED = (".example.com", ".example.org", ".example.net", ".example", ".test", ".invalid")
"""Domains for documentation (RFC 2606): no real addresses."""

CUE = re.compile(
    r"(?P<address>://|@|(?<![a-z])(?:ips?|ipv4|dns|cidr|inet|ping|peer|client|remote|at)(?![a-z])"
    r"|addr|host|server|gateway|subnet|netmask|resolver|proxy|endpoint|connect|listen)(?!ivity)"
    r"|(?P<number>§|(?<!con)version|firmware|objectidentifier|section|clause|chapter|appendix|paragraph|(?<![a-z])"
    r"(?:ver|releases?|released|build|upgrade|oids?|sect?|figure|table|handbook|hyperspec|iso|rfc\d*)(?![a-z]))",
    re.IGNORECASE,
)
"""Words that say what the four numbers after them are; the last one before them counts."""

HAS_CUE = re.compile(r"[A-Za-z§@]|://")

CUES_WITHIN = 60
"""Characters before the numbers, on their line."""

NAME_WITHIN = 20
"""The same, for the name of a product or of a file."""

ADDRESS_FOLLOWED_BY = re.compile(r"[/:]\d")
"""The length of a network, or a port."""

NUMBER_FOLLOWED_BY = re.compile(
    r"-\w{0,40}[A-Za-z]|\^|`_|\.(?:v\d|tar|tgz|zip|whl|egg|jar|dll|exe|so|deb|rpm|msi|dmg)(?!\w)"
)
"""`1.2.3.4-beta`, a footnote, a link in reStructuredText, `pkg-1.2.3.4.tar.gz`."""

NUMBER_AFTER = re.compile(r"[=~!<>]= ?$|[A-Za-z]-$|_`$|(?:^|[^\w/])[A-Z][A-Za-z]+/$")
"""`pkg==1.2.3.4`, `pkg-1.2.3.4`, a target in reStructuredText, the product in `Firefox/3.6.1.2`."""

LINE_BEGINS = re.compile(r"[\s#*\"'`/;%!.(\[-]*")

HEADING_FOLLOWS = re.compile(r"\.?[ \t]+(?:[A-Z][a-z]|(?:a|an|if|no|the|when)\b)|[ \t]+\(\d{4}-")
"""A sentence or a title, or the date of a release."""

LARGEST_IN_HEADING, LARGEST_OCTET = 60, 255

RESOLVERS = ("8.8.8.8", "8.8.4.4", "9.9.9.9")
"""Well-known addresses whose numbers are small enough to be those of a section."""

LINES_OF_LIST, LIST_WITHIN = 4, 300
"""Lines, and characters, before and after an address in which others of its list are looked for."""

LISTED = re.compile(r"[\s#*\"'`/;%!.(\[-]*(\d{1,3}(?:\.\d{1,3}){3})(?![\w.]*\d)")
"""A line that begins with four numbers."""

OBJECT_IDENTIFIERS = ("2.5.4.", "2.5.29.", "1.3.6.1", "1.3.14.", "1.3.101.")
"""X.500 attributes, certificate extensions, internet, OIW and Thawte: the identifiers of four numbers that code has."""


def is_email(match: re.Match[str]) -> bool:
    """Whether it may be somebody's."""
    domain = match[0].rpartition("@")[2].lower()
    return not f".{domain}".endswith(RESERVED)


def is_ip_address(match: re.Match[str]) -> bool:
    """Whether it is a public address, and no version, section or object identifier."""
    try:
        if not ipaddress.ip_address(match[0]).is_global:
            return False
    except ValueError:
        return False
    return ":" in match[0] or not _is_number(match)


def _is_number(match: re.Match[str]) -> bool:
    """Whether four numbers are something other than an IPv4 address, by what is around them."""
    text, start, end = match.string, match.start(), match.end()
    if ADDRESS_FOLLOWED_BY.match(text, end):
        return False
    before = text[max(start - CUES_WITHIN, 0) : start].rpartition("\n")[2]
    *_, cue = (None, *CUE.finditer(before)) if HAS_CUE.search(before) else (None,)
    says_address = cue is not None and cue.lastgroup == "address"
    if cue is not None and says_address and before[cue.end() :] in ("", "-", "/"):
        return False
    if NUMBER_FOLLOWED_BY.match(text, end) or NUMBER_AFTER.search(before[-NAME_WITHIN:]):
        return True
    if cue is not None:
        return not says_address
    octets = [int(octet) for octet in match[0].split(".")]
    if octets[2:] == [0, 0] or match[0].startswith(OBJECT_IDENTIFIERS):
        return True
    begins_line = LINE_BEGINS.fullmatch(before) and HEADING_FOLLOWS.match(text, end)
    return bool(begins_line) and max(octets) <= LARGEST_IN_HEADING and not _is_listed(match)


def _is_listed(match: re.Match[str]) -> bool:
    """Whether four small numbers at the start of a line, with words after them, are an address all the same.

    They are one of a public resolver, or lines next to theirs begin with numbers that no section and no release has, or
    these lines follow one that announces addresses: `Name servers:`.
    """
    if match[0] in RESOLVERS:
        return True
    text, start, end = match.string, match.start(), match.end()
    above = text[max(start - LIST_WITHIN, 0) : start].split("\n")[:-1]
    below = text[end : end + LIST_WITHIN].split("\n")[1:]
    for line in above[: -LINES_OF_LIST - 1 : -1]:
        if (numbers := LISTED.match(line)) is None:
            if line.rstrip().endswith(":") and {cue.lastgroup for cue in CUE.finditer(line)} == {"address"}:
                return True
            break
        if _is_no_section(numbers[1]):
            return True
    for line in below[:LINES_OF_LIST]:
        if (numbers := LISTED.match(line)) is None:
            break
        if _is_no_section(numbers[1]):
            return True
    return False


def _is_no_section(numbers: str) -> bool:
    """Whether four numbers are an address that no section or release has."""
    return numbers in RESOLVERS or LARGEST_IN_HEADING < int(numbers.partition(".")[0]) <= LARGEST_OCTET
