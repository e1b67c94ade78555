"""URI templates: the RFC's own examples, matching, and what matching must never do."""

from __future__ import annotations

import sys
import time
import timeit
import unicodedata
from types import FrameType
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from weft.protocol import uritemplate
from weft.protocol.uritemplate import UriTemplate

# --- expansion: the examples of RFC 6570, section 3.2

VALUES: dict[str, object] = {
    "count": ["one", "two", "three"],
    "dom": ["example", "com"],
    "dub": "me/too",
    "hello": "Hello World!",
    "half": "50%",
    "var": "value",
    "who": "fred",
    "base": "http://example.com/home/",
    "path": "/foo/bar",
    "list": ["red", "green", "blue"],
    "keys": {"semi": ";", "dot": ".", "comma": ","},
    "v": "6",
    "x": "1024",
    "y": "768",
    "empty": "",
    "empty_keys": {},
    "undef": None,
}

RFC_EXAMPLES = """
{count}                 one,two,three
{count*}                one,two,three
{/count}                /one,two,three
{/count*}               /one/two/three
{;count}                ;count=one,two,three
{;count*}               ;count=one;count=two;count=three
{?count}                ?count=one,two,three
{?count*}               ?count=one&count=two&count=three
{&count*}               &count=one&count=two&count=three
{var}                   value
{hello}                 Hello%20World%21
{half}                  50%25
O{empty}X               OX
O{undef}X               OX
{x,y}                   1024,768
{x,hello,y}             1024,Hello%20World%21,768
?{x,empty}              ?1024,
?{x,undef}              ?1024
?{undef,y}              ?768
{var:3}                 val
{var:30}                value
{list}                  red,green,blue
{list*}                 red,green,blue
{keys}                  semi,%3B,dot,.,comma,%2C
{keys*}                 semi=%3B,dot=.,comma=%2C
{+var}                  value
{+hello}                Hello%20World!
{+half}                 50%25
{base}index             http%3A%2F%2Fexample.com%2Fhome%2Findex
{+base}index            http://example.com/home/index
O{+empty}X              OX
O{+undef}X              OX
{+path}/here            /foo/bar/here
here?ref={+path}        here?ref=/foo/bar
up{+path}{var}/here     up/foo/barvalue/here
{+x,hello,y}            1024,Hello%20World!,768
{+path,x}/here          /foo/bar,1024/here
{+path:6}/here          /foo/b/here
{+list}                 red,green,blue
{+list*}                red,green,blue
{+keys}                 semi,;,dot,.,comma,,
{+keys*}                semi=;,dot=.,comma=,
{#var}                  #value
{#hello}                #Hello%20World!
{#half}                 #50%25
foo{#empty}             foo#
foo{#undef}             foo
{#x,hello,y}            #1024,Hello%20World!,768
{#path,x}/here          #/foo/bar,1024/here
{#path:6}/here          #/foo/b/here
{#list}                 #red,green,blue
{#list*}                #red,green,blue
{#keys}                 #semi,;,dot,.,comma,,
{#keys*}                #semi=;,dot=.,comma=,
{.who}                  .fred
{.who,who}              .fred.fred
{.half,who}             .50%25.fred
www{.dom*}              www.example.com
X{.var}                 X.value
X{.empty}               X.
X{.undef}               X
X{.var:3}               X.val
X{.list}                X.red,green,blue
X{.list*}               X.red.green.blue
X{.keys}                X.semi,%3B,dot,.,comma,%2C
X{.keys*}               X.semi=%3B.dot=..comma=%2C
X{.empty_keys}          X
X{.empty_keys*}         X
{/who}                  /fred
{/who,who}              /fred/fred
{/half,who}             /50%25/fred
{/who,dub}              /fred/me%2Ftoo
{/var}                  /value
{/var,empty}            /value/
{/var,undef}            /value
{/var,x}/here           /value/1024/here
{/var:1,var}            /v/value
{/list}                 /red,green,blue
{/list*}                /red/green/blue
{/list*,path:4}         /red/green/blue/%2Ffoo
{/keys}                 /semi,%3B,dot,.,comma,%2C
{/keys*}                /semi=%3B/dot=./comma=%2C
{;who}                  ;who=fred
{;half}                 ;half=50%25
{;empty}                ;empty
{;v,empty,who}          ;v=6;empty;who=fred
{;v,bar,who}            ;v=6;who=fred
{;x,y}                  ;x=1024;y=768
{;x,y,empty}            ;x=1024;y=768;empty
{;x,y,undef}            ;x=1024;y=768
{;hello:5}              ;hello=Hello
{;list}                 ;list=red,green,blue
{;list*}                ;list=red;list=green;list=blue
{;keys}                 ;keys=semi,%3B,dot,.,comma,%2C
{;keys*}                ;semi=%3B;dot=.;comma=%2C
{?who}                  ?who=fred
{?half}                 ?half=50%25
{?x,y}                  ?x=1024&y=768
{?x,y,empty}            ?x=1024&y=768&empty=
{?x,y,undef}            ?x=1024&y=768
{?var:3}                ?var=val
{?list}                 ?list=red,green,blue
{?list*}                ?list=red&list=green&list=blue
{?keys}                 ?keys=semi,%3B,dot,.,comma,%2C
{?keys*}                ?semi=%3B&dot=.&comma=%2C
{&who}                  &who=fred
{&half}                 &half=50%25
?fixed=yes{&x}          ?fixed=yes&x=1024
{&x,y,empty}            &x=1024&y=768&empty=
{&x,y,undef}            &x=1024&y=768
{&var:3}                &var=val
{&list}                 &list=red,green,blue
{&list*}                &list=red&list=green&list=blue
{&keys}                 &keys=semi,%3B,dot,.,comma,%2C
{&keys*}                &semi=%3B&dot=.&comma=%2C
"""
EXAMPLES = [tuple(line.split()) for line in RFC_EXAMPLES.strip().splitlines()]


@pytest.mark.spec("RES-16")
@pytest.mark.parametrize(("template", "uri"), EXAMPLES)
def test_the_examples_of_the_rfc_expand_as_it_says(template: str, uri: str) -> None:
    assert UriTemplate(template, matching=False).expand(VALUES) == uri


def test_expansion_of_other_values() -> None:
    assert UriTemplate("{a}/{b}/{c}").expand({"a": 7, "b": True, "c": "é~"}) == "7/true/%C3%A9~"
    assert UriTemplate("é{+a}").expand({"a": "%41%4"}) == "%C3%A9%41%254"
    assert UriTemplate("{a*}", matching=False).expand({"a": ["x", None, 3]}) == "x,3"
    assert UriTemplate("{?a*}").expand({"a": {"k": "", "n": None}}) == "?k="
    assert UriTemplate("{;a*}").expand({"a": {"k": ""}}) == ";k"
    assert UriTemplate("{?a}").expand({"a": []}) == ""


@pytest.mark.parametrize(("template", "value"), [("{a}", object()), ("{a}", [["nested"]]), ("{a:3}", ["x"])])
def test_values_that_cannot_be_expanded_are_named(template: str, value: object) -> None:
    with pytest.raises(ValueError, match="variable 'a' has"):
        UriTemplate(template).expand({"a": value})


@pytest.mark.parametrize(
    ("template", "reason"),
    [
        ("a/{b", "opens '{' at 2 and never closes it"),
        ("a}b", "'}' at 1"),
        ("{}", "'' is not a variable"),
        ("x{a,}", "expression '{a,}' at 1, where '' is not a variable"),
        ("{a b}", "'a b' is not a variable"),
        ("{a:0}", "'a:0' is not a variable"),
        ("{a:10000}", "'a:10000' is not a variable"),
        ("{a:2*}", "not a variable"),
        ("{a.}", "not a variable"),
        ("{{a}}", "not a variable"),
        ("{=a}", "operator '=' is reserved"),
        ("{|a}", "operator '|' is reserved"),
        ("a b", "' ' at 1"),
        ("100%", "'%' at 3"),
        ("a\\b", "percent-encode it"),
        ("{a}{b}", "two expressions side by side"),
        ("{?a}{+b}", "put a literal before 'b'"),
    ],
)
def test_wrong_templates_are_refused_naming_the_place(template: str, reason: str) -> None:
    with pytest.raises(ValueError) as caught:
        UriTemplate(template)
    assert reason in str(caught.value)


def test_the_names_of_the_variables() -> None:
    template = UriTemplate("x://{b}/{+a}{?b,c.d,e_1*}")
    assert template.variables == ("b", "a", "c.d", "e_1")
    assert template.text == "x://{b}/{+a}{?b,c.d,e_1*}"
    assert repr(template) == "UriTemplate('x://{b}/{+a}{?b,c.d,e_1*}')"


# --- matching

MATCHES: list[tuple[str, str, dict[str, Any] | None]] = [
    ("x://plain", "x://plain", {}),
    ("x://plain", "x://plain/", None),
    ("x://plain", "x://plai", None),
    ("", "", {}),
    ("", "a", None),
    ("x://{id}", "x://42", {"id": "42"}),
    ("x://{id}", "x://", None),
    ("x://{id}", "x://a/b", None),
    ("x://{id}", "x://a?b", None),
    ("x://{id}", "x://a%20b%C3%A9", {"id": "a bé"}),
    ("x://{id}", "x://a%2", None),
    ("x://{id}", "x://a%FF", None),
    ("x://{id}", "x://é", None),
    ("x://{id}", "y://42", None),
    ("x://{a}/{b}", "x://1/2", {"a": "1", "b": "2"}),
    ("x://{a}/{b}", "x://1/2/3", None),
    ("x://{a}/{b}/c", "x://1/2/c", {"a": "1", "b": "2"}),
    ("x://{name}.{ext}", "x://a.tar.gz", {"name": "a.tar", "ext": "gz"}),
    ("x://{a}-{b}-z", "x://1-2-3-z", {"a": "1-2", "b": "3"}),
    ("x://{a}1", "x://%311", {"a": "1"}),
    ("x://{a}1", "x://%31", None),
    ("x://{a}41", "x://b%41", None),
    ("x://{+path}", "x://a/b?c#d", {"path": "a/b?c#d"}),
    ("x://{+dir}/{name}", "x://a/b/c", {"dir": "a/b", "name": "c"}),
    ("x://{+dir}/{name}", "x://a", None),
    ("x://{+p}-{b}", "x://a-x/c-d", {"p": "a-x/c", "b": "d"}),
    ("x://{+p}/edit", "x://a/edit/edit", {"p": "a/edit"}),
    ("x://{+p}{?q}", "x://a/b?q=1", {"p": "a/b", "q": "1"}),
    ("x://{+p}{#f}", "x://a?b#c", {"p": "a?b", "f": "c"}),
    ("x://{+p}{#f}", "x://a", {"p": "a"}),
    ("x://?p={+p}{&q}", "x://?p=a/b&q=1", {"p": "a/b", "q": "1"}),
    ("x://{a}{.ext}", "x://a.txt", {"a": "a", "ext": "txt"}),
    ("x://{a}{.ext}", "x://a", None),
    ("x://h{.dom*}", "x://h.a.b", {"dom": ["a", "b"]}),
    ("x://h{/a}", "x://h/1", {"a": "1"}),
    ("x://h{/a}", "x://h/1/2", None),
    ("x://h{/a}", "x://h", None),
    ("x://h{/a,b}", "x://h/1/2", {"a": "1", "b": "2"}),
    ("x://h{/a,b}", "x://h/1", None),
    ("x://h{/a*}", "x://h/1/2%2C/3", {"a": ["1", "2,", "3"]}),
    ("x://h{/a*}", "x://h/1//3", None),
    ("x://h{/a*}/end", "x://h/1/end", {"a": ["1"]}),
    ("x://h{/a,b*,c}", "x://h/1/2/3/4", {"a": "1", "b": ["2", "3"], "c": "4"}),
    ("x://h{/a,b*,c}", "x://h/1/2", None),
    ("x://{a,b}", "x://1,2", {"a": "1", "b": "2"}),
    ("x://{a,b}", "x://1,", None),
    ("x://{a*}", "x://1,2", {"a": ["1", "2"]}),
    ("x://h{;p,q}", "x://h;q=2;p", {"q": "2", "p": ""}),
    ("x://h{;p}{;q}/z", "x://h;q=2;p=1/z", {"q": "2", "p": "1"}),
    ("x://h{;p}", "x://h", {}),
    ("x://h{?q,r}", "x://h", {}),
    ("x://h{?q,r}", "x://h?", None),
    ("x://h{?q,r}", "x://h?r=2&q=a/b:c%26", {"r": "2", "q": "a/b:c&"}),
    ("x://h{?q,r}", "x://h?q=", {"q": ""}),
    ("x://h{?q,r}", "x://h?q=a=b", {"q": "a=b"}),
    ("x://h{?q,r}", "x://h?q=1&q=2", None),
    ("x://h{?q,r}", "x://h?q=1&s=2", None),
    ("x://h{?q,r}", "x://h?Q=1", None),
    ("x://h{?q,r}", "x://h&q=1", None),
    ("x://h{?q,r}{#f}", "x://h?q=1#top", {"q": "1", "f": "top"}),
    ("x://h{?q*}", "x://h?q=1&q=2", {"q": ["1", "2"]}),
    ("x://h{?q*}", "x://h?q=1", {"q": ["1"]}),
    ("x://h{?a}{&b}", "x://h?b=2&a=1", {"a": "1", "b": "2"}),
    ("x://h?v=1{&q}", "x://h?v=1&q=2", {"q": "2"}),
    ("x://h?v=1{&q}", "x://h?v=1", {}),
    ("x://{a:3}", "x://abc", {"a": "abc"}),
    ("x://{a:3}", "x://abcd", None),
    ("x://{a:3}", "x://%C3%A9bc", {"a": "ébc"}),
    ("x://{a:1}/{a}", "x://b/bob", {"a": "bob"}),
    ("x://{a:1}/{a}", "x://c/bob", None),
    ("x://{a}/{a}", "x://1/1", {"a": "1"}),
    ("x://{a}/{a}", "x://1/2", None),
]


@pytest.mark.spec("RES-16")
@pytest.mark.parametrize(("template", "uri", "values"), MATCHES)
def test_matching(template: str, uri: str, values: dict[str, Any] | None) -> None:
    assert UriTemplate(template).match(uri) == values


def test_a_template_that_is_only_expanded_does_not_match() -> None:
    with pytest.raises(ValueError, match="matching=False"):
        UriTemplate("{a}{b}", matching=False).match("ab")


UNSAFE = [
    ("x://{a}", "x://.."),
    ("x://{a}", "x://."),
    ("x://{a}", "x://%2e%2E"),
    ("x://{a}", "x://a%2Fb"),
    ("x://{a}", "x://..%2fetc"),
    ("x://{a}", "x://a%5Cb"),
    ("x://{a}", "x://a%00"),
    ("x://{a}/z", "x://../z"),
    ("x://h{.a}", "x://h..."),
    ("x://h{/a}", "x://h/.."),
    ("x://h{/a*}", "x://h/a/../b"),
    ("x://h{/a*}", "x://h/a/%2e./b"),
    ("x://h{/a*}", "x://h/a/b%2fc"),
    ("x://h{;a}", "x://h;a=%2e%2e"),
    ("file:///{+p}", "file:///a/%2e%2e/%2e%2e/etc/passwd"),
    ("x://{+p}", "x://.."),
    ("x://{+p}", "x://a/../b"),
    ("x://{+p}", "x://a/%2e%2e/b"),
    ("x://{+p}", "x://a%2f..%2fb"),
    ("x://{+p}", "x://a/.."),
    ("x://{+p}", "x://a%5C..%5Cb"),
    ("x://{+p}", "x://a%5Cb"),
    ("x://{+p}", "x://a%00b"),
    ("x://{+p}", "x:///etc/passwd"),
    ("x://{+p}", "x://%2Fetc/passwd"),
    ("x://{+p}", "x://C:/Windows"),
    ("x://{+p}", "x://C:"),
    ("x://{+p}", "x://file:///etc/passwd"),
    ("x://{+p}", "x://file:/etc/passwd"),
    ("x://{+p}", "x://jar:file:/etc/x.jar"),
    ("x://{+p}", "x://http://169.254.169.254/"),
    ("x://{+p}", "x://%66ile%3A%2F%2F/etc/passwd"),
    ("x://{+p}", "x://..;/etc"),
    ("x://{+p}", "x://a/..;x=1/b"),
    ("x://{+p}", "x://a/..%20/b"),
    ("x://{+p}", "x://%252e%252e%252fetc"),
    ("x://{+p}", "x://a%2525252fb/%25252e."),
    ("x://{+p}", "x://%" + "25" * 20 + "41"),  # encoded twenty times
    ("x://{+p}", "x://%EF%BC%8E%EF%BC%8E%EF%BC%8Fetc"),  # full-width dots and slash
    ("x://{+p}", "x://%E2%80%A5/etc"),  # a two dot leader
    ("x://{+p}", "x://a%0ab"),
    ("x://{+p}", "x://a%250ab"),
    ("x://{+p}", "x://a%C2%85b"),
    ("x://{a}", "x://a%0db"),
    ("x://{a}", "x://%252e%252e"),
    ("x://{a}", "x://%25252e"),
    ("x://{a}", "x://a%252fb"),
    ("x://{a}", "x://%EF%BC%8E%EF%BC%8E"),
    ("x://{a}", "x://a%EF%BC%8Fb"),
    ("x://h{?a}", "x://h?a=%252e%252e%252fb"),
    ("x://h{?a}", "x://h?a=../b"),
    ("x://h{?a}", "x://h?a=%2e%2e%5Cb"),
    ("x://h{?a}", "x://h?a=%00"),
    ("x://h{#a}", "x://h#a/.."),
    ("x://{+p}", "x://a/.%E2%80%8B./b"),  # a zero width space
    ("x://{+p}", "x://a/.%C2%AD./b"),  # a soft hyphen
    ("x://{+p}", "x://a/.%E2%80%8D./b"),  # a zero width joiner
    ("x://{a}", "x://.%E2%80%8C."),  # and a non-joiner
    ("x://{a}", "x://%E2%80%8C."),
    ("x://h{?a}", "x://h?a=.%E2%80%8B./b"),
    ("x://{+p}", "x://%E2%80%8D/etc"),
    ("x://{+p}", "x://a%E2%80%A8b"),  # a line separator
    ("x://{+p}", "x://a%E2%80%A9b"),  # a paragraph separator
    ("x://{+p}", "x://%E2%80%AEtxt.exe"),  # what follows is shown from right to left
    ("x://{a}", "x://a%EF%BB%BFb"),
]


@pytest.mark.security("R9")
@pytest.mark.spec("RES-13")
@pytest.mark.parametrize(("template", "uri"), UNSAFE)
def test_values_that_could_leave_their_place_do_not_match(template: str, uri: str) -> None:
    assert UriTemplate(template).match(uri) is None
    assert UriTemplate(template).match(uri, safe=False) is not None


@pytest.mark.security("R9")
@pytest.mark.parametrize(
    ("template", "uri", "value"),
    [
        ("x://{a}", "x://a..b", "a..b"),
        ("x://{a}", "x://...", "..."),
        ("x://{a}", "x://100%25.txt", "100%.txt"),
        ("x://{a}", "x://100%2525.txt", "100%25.txt"),
        ("x://{a}", "x://%E4%BD%A0%E5%A5%BD", "你好"),
        ("x://{+a}", "x://a/.hidden/..b/c", "a/.hidden/..b/c"),
        ("x://{+a}", "x://note:%201/a;v=2/b", "note: 1/a;v=2/b"),
        ("{+a}", "http://h/p", "http://h/p"),
        ("x://{a}", "x://%D9%85%DB%8C%E2%80%8C%D8%B1%D9%88%D9%85", "می\u200cروم"),  # Persian has non-joiners in words
        ("x://h{?a}", "x://h?a=/b%5C", "/b\\"),
        ("x://h{?a}", "x://h?a=http://h/p%0a", "http://h/p\n"),
    ],
)
def test_values_are_decoded_once_and_harmless_ones_pass(template: str, uri: str, value: str) -> None:
    assert UriTemplate(template).match(uri) == {"a": value}


# --- properties


def is_plain(text: str) -> bool:
    shown = unicodedata.normalize("NFKC", text)
    return not set(shown) & set("/\\%") and shown.partition(";")[0].strip() not in (".", "..")


SAFE = st.text(st.characters(exclude_categories=["Cc", "Cf", "Cs", "Zl", "Zp"]), min_size=1).filter(is_plain)
PATH = st.lists(
    SAFE.filter(lambda text: not set(text) & set("?#&;") and ":" not in unicodedata.normalize("NFKC", text)), min_size=1
).map("/".join)


@given(owner=SAFE, path=PATH, segments=st.lists(SAFE, min_size=1), q=SAFE, tags=st.lists(SAFE, min_size=1))
def test_what_is_expanded_matches_back(owner: str, path: str, segments: list[str], q: str, tags: list[str]) -> None:
    values = {"owner": owner, "segments": segments, "q": q, "tags": tags}
    template = UriTemplate("x://{owner}{/segments*}{?q,tags*}")
    assert template.match(template.expand(values)) == values

    template = UriTemplate("x://{owner}/-/{+path}{?q}{#owner}")
    values = {"owner": "o", "path": path, "q": q}
    assert template.match(template.expand(values)) == values


@given(st.sampled_from([case[0] for case in MATCHES]), st.text("x:/ab.?&;=#%2e-,1", max_size=30))
def test_a_match_means_that_the_values_expand_to_an_equal_uri(template: str, tail: str) -> None:
    parsed = UriTemplate(template)
    uri = f"x://{tail}"
    values = parsed.match(uri, safe=False)
    if values is not None:
        again = parsed.match(parsed.expand(values), safe=False)
        reserved = "{+" in template or "{#" in template  # there, %25 in a value is ambiguous by design
        assert reserved or again == {name: value for name, value in values.items() if value != []}


def steps(template: str, uri: str) -> int:
    """How many lines of the module run for one match."""
    count = 0

    def trace(frame: FrameType, event: str, arg: object) -> Any:
        nonlocal count
        count += event == "line"
        return trace if frame.f_code.co_filename == uritemplate.__file__ else None

    parsed = UriTemplate(template)
    before = sys.gettrace()
    sys.settrace(trace)
    try:
        parsed.match(uri)
    finally:
        sys.settrace(before)
    return count


ADVERSARIAL = [
    ("x://{a}-{b}-{c}-{d}!", "-"),
    ("x://{+a}/{+b}/{+c}/{+d}!", "/"),
    ("x://{+a}aaa{+b}aaa{+c}aab", "a"),
    ("x://{a*}/{b*}!", ","),
    ("x://h{/a*,b,c*}!", "/a"),
    ("x://h{?a*}", "&a=1"),
    ("x://h{;a*}!", ";a"),
    ("x://{a}{.b*}{.c*}!", "."),
    ("x://{a}1{b}2", "%31"),
    ("x://{+a}{?b}{#c}", "?"),
    ("x://{+a}", "%2e%2e/"),
]


@pytest.mark.security("R7")
@pytest.mark.parametrize(("template", "unit"), ADVERSARIAL)
def test_the_work_grows_with_the_uri_and_no_faster(template: str, unit: str) -> None:
    start = template.split("{")[0]
    small = steps(template, start + unit * (2_000 // len(unit)))
    large = steps(template, start + unit * (8_000 // len(unit)))
    assert large <= 4 * small + 100
    assert large <= 100 * 8_000  # a bound on the constant as well: lines per character


@pytest.mark.security("R7")
@pytest.mark.parametrize(("template", "unit"), ADVERSARIAL)
def test_a_hundred_kilobytes_finish_with_the_same_verdict_as_a_few(template: str, unit: str) -> None:
    start, parsed = template.split("{")[0], UriTemplate(template)
    few, many = (parsed.match(start + unit * (size // len(unit))) for size in (100, 100_000))
    assert (few is None) == (many is None)


@pytest.mark.security("R7")
@pytest.mark.parametrize(
    ("template", "uri"),
    [
        ("x://{a}/x%d/{b}", "x://" + "a/x" * 2600 + "/"),
        ("x://{a}/x%d/{b}", "x://a" + "".join(f"/x{number}" for number in range(1500)) + "/"),
        ("x://{+a}/x%d/{+b}", "x://a/../" + "".join(f"x{number}/" for number in range(1500))),
        ("x://{+a}/x%d/{b}!", "x://" + "".join(f"x{number}/" for number in range(1500))),
        ("x://{a}.x%d.{b}.z", "x://" + "".join(f".x{number}" for number in range(1500))),
    ],
)
def test_a_long_uri_and_many_templates(template: str, uri: str) -> None:
    templates = [UriTemplate(template % number) for number in range(40)]

    def match() -> None:
        assert not any(each.match(uri) for each in templates)

    assert min(timeit.repeat(match, timer=time.process_time, number=1, repeat=3)) < 0.15


# --- shapes


@pytest.mark.parametrize(
    ("one", "other"),
    [
        ("a://{x}", "a://{y}"),
        ("a://{x}/{y}", "a://{y}/{x}"),
        ("a://{x,y}{?q}", "a://{p,r}{?q}"),
        ("a://{x}/{x}", "a://{y}/{y}"),
        ("a://{x:3}/{/y*}", "a://{p:3}/{/r*}"),
    ],
)
def test_templates_that_match_the_same_have_one_shape(one: str, other: str) -> None:
    assert UriTemplate(one).shape == UriTemplate(other).shape


@pytest.mark.parametrize(
    ("one", "other"),
    [
        ("a://{x}", "b://{x}"),
        ("a://{x}", "a://{+x}"),
        ("a://{x}", "a://{x:3}"),
        ("a://{x}", "a://{x*}"),
        ("a://{x}/{x}", "a://{x}/{y}"),
        ("a://b{?x}", "a://b{?y}"),
        ("a://{x}{?x}", "a://{y}{?x}"),  # in the first, both have one value
    ],
)
def test_templates_that_do_not_have_different_ones(one: str, other: str) -> None:
    assert UriTemplate(one).shape != UriTemplate(other).shape
