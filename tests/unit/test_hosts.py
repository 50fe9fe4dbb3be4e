"""Which hosts a node answers to, and in what form they come."""

from __future__ import annotations

import pytest

from dfc.addresses import ANY_HOST, PRIVATE_SUFFIXES, KnownHosts, host_name, host_of
from dfc.errors import BadRequest, Misdirected
from dfc.limits import HOST_CHARS_MAX, HOSTS_REMEMBERED_MAX

LONGEST = ".".join(["a" * 63, "b" * 63, "c" * 63, "d" * 61])


def verdict(known: KnownHosts, authority: str) -> str:
    try:
        known.check(authority)
    except Misdirected:
        return "misdirected"
    except BadRequest:
        return "malformed"
    return "known"


def test_addresses_and_names_that_nobody_outside_can_give_out():
    known = KnownHosts(())
    hosts = ["127.0.0.1", "127.0.0.1.", "0.0.0.0", "255.255.255.255", "[::]", "[::1%lo]", "[::ffff:1.2.3.4]"]
    hosts += ["a", "A1_-", "localhost.", "2130706433", "0x7f000001"]
    hosts += [f"{prefix}{suffix}" for prefix in ("x", "X.y") for suffix in PRIVATE_SUFFIXES]
    for host in hosts:
        for port in ("", ":", ":1", ":65535"):
            assert verdict(known, host + port) == "known", host + port


@pytest.mark.parametrize("suffix", PRIVATE_SUFFIXES)
def test_a_suffix_begins_at_a_dot(suffix):
    known = KnownHosts(())
    for host in (f"evil.a{suffix[1:]}", f"a{suffix}.example", f"a{suffix}-b.example", f"a{suffix}a"):
        assert verdict(known, host) == "misdirected", host


@pytest.mark.parametrize(
    "host", ["256.1.1.1", "1.2.3", "1.2.3.4.5", "0x7f.0.0.1", "127.0.0.01", "0177.0.0.1", "1.2.3.0x4", "127.0.0.1.example"]
)
def test_other_spellings_of_addresses_are_none(host):
    assert verdict(KnownHosts(()), host) == "misdirected"


@pytest.mark.parametrize(
    "authority",
    ["", ":", ":1", "a b", " a", "a\t", "a,b", "a@b", "a:b@c", "a:1:2", "a:x", "a:+1", "a:123456", "a/b", "a?b", "a#b", "a\\b",
     "%61", "[]", "[::1", "::1]", "[::1]x", "[:::1]", "[1.2.3.4]", "[::1%]", "[::1%a/b]", "[::12345]", "a..b", ".a", ".",
     "..", "a.b..",
     "é", "a\u3002b", "\uff41", "\u212a", "1\u0660", "a" * 64, LONGEST + "e", "a\n", "*", "*.a"],
)  # fmt: skip
def test_what_is_no_host(authority):
    """Not even where any name will do."""
    assert verdict(KnownHosts(()), authority) == verdict(KnownHosts((ANY_HOST,)), authority) == "malformed"


def test_own_names_in_any_case_with_any_port():
    known = KnownHosts(("Node.Example", "b.example.", LONGEST, "not a name", ""))
    for host in ("node.example", "NODE.example.:1", "b.example", "B.example.", LONGEST, f"{LONGEST}.:65535"):
        assert verdict(known, host) == "known", host
    for host in ("a.node.example", "example.com", "node.example.b.example", "b.examples"):
        assert verdict(known, host) == "misdirected", host


def test_any_name():
    assert verdict(KnownHosts(("a.example", ANY_HOST)), "evil.example") == "known"


def test_the_message_names_the_host_and_the_setting():
    with pytest.raises(Misdirected, match=r"'evil\.example:8080'.*allowed_hosts"):
        KnownHosts(()).check("evil.example:8080")


def test_what_is_remembered_is_bounded():
    known = KnownHosts(())
    for number in range(3 * HOSTS_REMEMBERED_MAX):
        assert verdict(known, f"name-{number}") == "known"
        assert verdict(known, f"a.{'x' * 5000}{number}") == "malformed"
    assert known._admits.cache_info().currsize == HOSTS_REMEMBERED_MAX


@pytest.mark.parametrize(
    ("url", "host"),
    [
        ("http://Node.example:8080", "node.example"), ("https://a/", "a"), ("http://[::1]:80", "::1"), ("http://u:p@a:1", "a"),
        ("http://münze.example", "xn--mnze-0ra.example"), ("", ""), ("http://[", ""), (f"http://{'ü' * 80}.example", ""),
    ],
)  # fmt: skip
def test_the_host_of_a_url(url, host):
    assert host_of(url) == host


def test_names():
    assert [host_name(text) for text in ("A.b.", "a_b", LONGEST, LONGEST + "e", "a:1", "", "*", "a..b", "é")] == [
        "a.b", "a_b", LONGEST, None, None, None, None, None, None
    ]  # fmt: skip
    assert len(LONGEST) == HOST_CHARS_MAX
