"""What headers say, how values travel in them, and when they disagree with the body."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from weft.errors import HeaderMismatch
from weft.protocol import headers
from weft.protocol.headers import HeaderFault, check_mirrors, check_name, find_mirrors, matches, mirror_values

ASGI = [
    (b"host", b"localhost:8000"),
    (b"user-agent", b"probe"),
    (b"authorization", b"Bearer secret"),
    (b"cookie", b"sid=1"),
    (b"mcp-method", b" \ttools/call "),
    (b"mcp-param-region", b"eu"),
    (b"x-many", b"one"),
    (b"x-many", b"two"),
]


# --- reading


@pytest.mark.spec("HDR-12")
def test_get_strips_optional_whitespace_and_keeps_the_case() -> None:
    read = headers.read(ASGI)
    assert read.get(b"mcp-method") == "tools/call"
    assert read.get(b"mcp-param-region") == "eu"
    assert read.get(b"mcp-name") is None
    # Only blanks and tabs are optional whitespace; anything else belongs to the value.
    assert headers.read([(b"mcp-name", b"\x0bX\xa0")]).get(b"mcp-name") == "\x0bX\xa0"


def test_fields_are_found_by_name() -> None:
    read = headers.read(ASGI)
    assert read.known[b"mcp-method"] == b" \ttools/call "
    assert read.raw is ASGI
    assert headers.read([]).known == {}


def test_the_mapping_is_read_only_joins_repeats_and_holds_no_secrets() -> None:
    mapping = headers.read(iter(ASGI)).mapping()
    assert mapping["x-many"] == "one, two"
    assert mapping["mcp-method"] == "tools/call"
    assert not {"authorization", "cookie"} & set(mapping)
    with pytest.raises(TypeError):
        mapping["host"] = "evil"


UNIQUE = [
    *(b"host", b"origin", b"authorization", b"content-type", b"content-length"),
    *(b"mcp-protocol-version", b"mcp-method", b"mcp-name", b"mcp-session-id"),
    *(b"mcp-param-region", b"mcp-something-new"),
]


@pytest.mark.security("R14")
@pytest.mark.parametrize("name", UNIQUE)
@pytest.mark.parametrize("second", [b"a", b"b"])
def test_a_repeated_deciding_header_is_refused(name: bytes, second: bytes) -> None:
    with pytest.raises(HeaderFault, match="more than once; send it exactly once") as caught:
        headers.read([(name, b"a"), (b"x-between", b""), (name, second)])
    assert caught.value.status == 400
    assert name.decode() in str(caught.value)
    is_mirroring = name in (b"mcp-protocol-version", b"mcp-method", b"mcp-name", b"mcp-param-region")
    assert caught.value.code == (-32020 if is_mirroring else -32600)  # HDR-10


def test_a_repeated_header_with_a_wild_name_is_shown_cleaned_and_cut() -> None:
    name = b"mcp-param-\r\n\xff" + b"x" * 500
    with pytest.raises(HeaderFault) as caught:
        headers.read([(name, b"a"), (name, b"a")])
    assert str(caught.value).isascii() or "\N{REPLACEMENT CHARACTER}" in str(caught.value)
    assert "\n" not in str(caught.value)
    assert len(str(caught.value)) < 200


def test_lists_are_joined_and_hints_take_the_last() -> None:
    read = headers.read(
        [
            (b"accept", b"application/json"),
            (b"accept", b"text/event-stream"),
            (b"content-encoding", b"gzip"),
            (b"content-encoding", b"identity"),
            (b"traceparent", b"a"),
            (b"traceparent", b"b"),
            (b"last-event-id", b"1"),
            (b"last-event-id", b"2"),
        ]
    )
    assert read.get(b"accept") == "application/json, text/event-stream"
    assert read.get(b"content-encoding") == "gzip, identity"
    assert read.get(b"traceparent") == "b"
    assert read.get(b"last-event-id") == "2"


@pytest.mark.security("D5", "R12")
def test_one_field_or_one_byte_too_many_is_431() -> None:
    headers.read([(b"x-%d" % index, b"") for index in range(128)])
    with pytest.raises(HeaderFault, match="more than 128 header fields") as caught:
        headers.read([(b"x-%d" % index, b"") for index in range(129)])
    assert caught.value.status == 431

    headers.read([(b"x", b"y" * 65535)])
    with pytest.raises(HeaderFault, match="exceed 65536 bytes") as caught:
        headers.read([(b"x", b"y" * 65536)])
    assert caught.value.status == 431

    headers.read([(b"x", b"y" * 32767)] * 2)
    with pytest.raises(HeaderFault, match="exceed 65536 bytes"):  # each copy counts, also where the last one holds
        headers.read([(b"x", b"y" * 32768)] * 2)


# --- values

ENCODED = [
    ("us-west1", "us-west1"),
    ("Hello, 世界", "=?base64?SGVsbG8sIOS4lueVjA==?="),
    (" padded ", "=?base64?IHBhZGRlZCA=?="),
    ("line1\nline2", "=?base64?bGluZTEKbGluZTI=?="),
    ("=?base64?literal?=", "=?base64?PT9iYXNlNjQ/bGl0ZXJhbD89?="),
    ("a\tb", "=?base64?YQli?="),
    ("inner  blanks stay", "inner  blanks stay"),
    ("", ""),
    ("=?BASE64?literal?=", "=?BASE64?literal?="),
    ("=?base64?open", "=?base64?open"),
    ("\x7f", "=?base64?fw==?="),
]


@pytest.mark.spec("HDR-08", "HDR-27", "HDR-28", "HDR-42")
@pytest.mark.parametrize(("text", "value"), ENCODED)
def test_values_are_encoded_as_the_specification_shows(text: str, value: str) -> None:
    assert headers.encode_value(text) == value
    assert headers.decode_value(value) == text


@given(st.text())
def test_every_text_survives_the_trip_in_a_legal_header(text: str) -> None:
    value = headers.encode_value(text)
    assert value.isascii()
    assert value.isprintable()
    assert value == value.strip()
    assert headers.decode_value(value) == text


@pytest.mark.spec("HDR-29")
@pytest.mark.parametrize("literal", ["=?Base64?SGVsbG8=?=", "=?base64?SGVsbG8=", "=?base64?=", "a=?base64?YQ==?="])
def test_anything_but_the_exact_marks_is_literal(literal: str) -> None:
    assert headers.decode_value(literal) == literal


@pytest.mark.spec("HDR-31")
@pytest.mark.parametrize(
    "value",
    [
        "=?base64?SGVsbG8?=",
        "=?base64?SGVs!!!bG8=?=",
        "=?base64?SGVsbG8==?=",
        "=?base64?SGVs bG8=?=",
        "=?base64?/w==?=",
        "=?base64?_-8=?=",
        "caf\xe9",
        "a\x00b",
        "a\nb",
        "\x7f",
    ],
)
def test_malformed_values_are_refused_with_a_remedy(value: str) -> None:
    with pytest.raises(ValueError, match=r"; use .*base64"):
        headers.decode_value(value)


def test_an_inner_tab_is_accepted_plain() -> None:
    assert headers.decode_value("a\tb") == "a\tb"


@pytest.mark.spec("HDR-26")
@pytest.mark.parametrize(("value", "text"), [("eu", "eu"), (42, "42"), (-7, "-7"), (True, "true"), (False, "false")])
def test_rendering(value: str | int, text: str) -> None:
    assert headers.render(value) == text


@pytest.mark.spec("HDR-20")
@pytest.mark.parametrize("sign", [1, -1])
def test_integers_stay_within_the_safe_range(sign: int) -> None:
    assert headers.render(sign * (2**53 - 1)) == str(sign * (2**53 - 1))
    with pytest.raises(ValueError, match="send larger ones as text"):
        headers.render(sign * 2**53)
    with pytest.raises(ValueError, match="send larger ones as text"):
        matches(str(sign * 2**53), sign * 2**53)


SAME = [
    ("eu", "eu"),
    ("=?base64?SGVsbG8=?=", "Hello"),
    ("", ""),
    ("42", "42"),
    ("42", 42),
    ("42.0", 42),
    ("4.2e1", 42),
    ("-0", 0),
    ("=?base64?NDI=?=", 42),
    ("42", 42.0),
    ("42.0", 42.0),
    ("0.1", 0.1),
    ("0.10", 0.1),
    ("true", True),
    ("false", False),
    ('{"a":[1,"é"]}'.replace("é", "e"), {"a": [1, "e"]}),
    (str(2**53 - 1), 2**53 - 1),
]
DIFFERENT = [
    ("EU", "eu"),
    ("42.0", "42"),
    ("42.00000000000000000001", 42),
    (f"{2**53 - 1}.4", 2**53 - 1),
    ("042", 42),
    ("٤٢", 42),
    ("+42", 42),
    ("1e999999999999", 42),
    ("forty-two", 42),
    ("", 0),
    ("1", True),
    ("True", True),
    ("0", False),
    ("true", 1),
    ("[1]", [2]),
    ("NaN", 1.5),
]


@pytest.mark.spec("HDR-30", "HDR-36")
@pytest.mark.parametrize(("header", "value"), SAME)
def test_what_counts_as_the_same(header: str, value: object) -> None:
    assert matches(header, value)


@pytest.mark.spec("HDR-12", "HDR-32", "HDR-36")
@pytest.mark.parametrize(("header", "value"), DIFFERENT)
def test_what_counts_as_different(header: str, value: object) -> None:
    assert not matches(headers.encode_value(header), value)


# --- x-mcp-header: the schema

STRING = {"type": "string"}


def annotated(name: object, **schema: object) -> dict[str, object]:
    return {"type": "string", **schema, "x-mcp-header": name}


@pytest.mark.spec("HDR-13", "HDR-21", "HDR-43")
def test_annotations_are_found_in_order_at_every_depth() -> None:
    schema = {
        "type": "object",
        "properties": {
            "method": annotated("Method"),
            "plain": STRING,
            "where": {"type": "object", "properties": {"zone": annotated("Zone", type="integer")}},
            "loud": annotated("Loud", type="boolean"),
        },
    }
    found = find_mirrors(schema)
    assert [(mirror.header, mirror.field, mirror.path) for mirror in found] == [
        ("Mcp-Param-Method", b"mcp-param-method", ("method",)),
        ("Mcp-Param-Zone", b"mcp-param-zone", ("where", "zone")),
        ("Mcp-Param-Loud", b"mcp-param-loud", ("loud",)),
    ]


@pytest.mark.parametrize(
    "nullable",
    [
        {"type": ["string", "null"]},
        {"type": None, "anyOf": [STRING, {"type": "null"}]},
        {"type": None, "oneOf": [{"type": "null"}, STRING]},
    ],
)
@pytest.mark.spec("HDR-19", "HDR-23")
def test_a_property_that_may_be_null_is_refused_as_other_clients_do(nullable: dict[str, object]) -> None:
    property_schema = {key: value for key, value in annotated("R", **nullable).items() if value is not None}
    with pytest.raises(ValueError, match="exactly one of these as its 'type'"):
        find_mirrors({"properties": {"r": property_schema}})


def test_names_and_data_that_look_like_annotations_are_none() -> None:
    lookalike = {"x-mcp-header": ""}
    schema = {
        "properties": {"x-mcp-header": {"type": "object", "default": lookalike, "enum": [lookalike]}},
        "$defs": {"x-mcp-header": STRING},
        "dependentRequired": {"x-mcp-header": ["a"]},
        "required": ["x-mcp-header"],
        "examples": [lookalike],
        "const": lookalike,
    }
    assert find_mirrors(schema) == ()
    assert find_mirrors({}) == ()
    assert find_mirrors({"properties": {"a": True}}) == ()


@pytest.mark.parametrize(
    "name",
    [
        pytest.param("", marks=pytest.mark.spec("HDR-15")),
        pytest.param("My Region", marks=pytest.mark.spec("HDR-16")),
        pytest.param("Region:", marks=pytest.mark.spec("HDR-16")),
        pytest.param("Région", marks=pytest.mark.spec("HDR-16")),
        pytest.param("A\rB", marks=pytest.mark.spec("HDR-17")),
        pytest.param("A\n", marks=pytest.mark.spec("HDR-17")),
        pytest.param("A\x00", marks=pytest.mark.spec("HDR-17")),
        None,
        7,
        ["Region"],
    ],
)
def test_a_name_that_is_no_token_is_refused(name: object) -> None:
    with pytest.raises(ValueError, match="'#/properties/region' must be a non-empty HTTP token"):
        find_mirrors({"properties": {"region": annotated(name)}})


@pytest.mark.spec("HDR-18")
def test_names_are_unique_over_the_whole_schema_ignoring_case() -> None:
    nested = {"type": "object", "properties": {"b": annotated("REGION")}}
    with pytest.raises(ValueError, match=r"'#/properties/n/properties/b' repeats .* of 'a' .*; rename one"):
        find_mirrors({"properties": {"a": annotated("Region"), "n": nested}})


@pytest.mark.spec("HDR-19")
@pytest.mark.parametrize(
    "kind",
    ["number", "object", "array", "null", ["string", "integer"], ["number", "null"], ["null"], [], None, {}, 3],
)
def test_only_primitive_types_are_mirrored(kind: object) -> None:
    with pytest.raises(ValueError, match="not integer, string or boolean"):
        find_mirrors({"properties": {"a": annotated("A", type=kind)}})


@pytest.mark.spec("HDR-19")
@pytest.mark.parametrize(
    "schema",
    [
        {"$ref": "#/$defs/Color"},
        {"enum": ["a"]},
        {"anyOf": [STRING, {"type": "number"}]},
        {"anyOf": [STRING, {"$ref": "#/$defs/Color"}]},
        {"anyOf": [STRING, True]},
        {"anyOf": "string"},
    ],
)
def test_a_type_that_is_not_stated_is_refused(schema: dict[str, object]) -> None:
    with pytest.raises(ValueError, match="not integer, string or boolean"):
        find_mirrors({"properties": {"a": {**schema, "x-mcp-header": "A"}}, "$defs": {"Color": STRING}})


INNER = {"properties": {"deep": annotated("Deep")}}


@pytest.mark.spec("HDR-21")
@pytest.mark.parametrize(
    "schema",
    [
        *({keyword: INNER} for keyword in ("items", "contains", "additionalProperties", "not", "if", "then", "else")),
        *({keyword: INNER} for keyword in ("propertyNames", "unevaluatedProperties", "x-unknown")),
        *({keyword: [STRING, INNER]} for keyword in ("oneOf", "anyOf", "allOf", "prefixItems")),
        *({keyword: {"n": INNER}} for keyword in ("$defs", "definitions", "patternProperties", "dependentSchemas")),
        {"anyOf": [annotated("Deep"), {"type": "null"}]},
    ],
)
def test_an_annotation_off_the_properties_chain_is_refused(schema: dict[str, object]) -> None:
    for whole in (schema, {"properties": {"a": schema}}):
        with pytest.raises(ValueError, match="only through 'properties'"):
            find_mirrors(whole)


@pytest.mark.spec("HDR-21")
def test_the_root_itself_is_not_a_parameter() -> None:
    with pytest.raises(ValueError, match="only through 'properties'"):
        find_mirrors(annotated("Root"))


def test_a_deep_foreign_schema_does_not_exhaust_the_stack() -> None:
    schema: dict[str, object] = annotated("Deep")
    for _ in range(5000):
        schema = {"items": schema}
    with pytest.raises(ValueError, match="only through 'properties'"):
        find_mirrors(schema)


# --- x-mcp-header: the call

MIRRORS = find_mirrors(
    {
        "properties": {
            "region": annotated("Region"),
            "n": annotated("N", type="integer"),
            "where": {"properties": {"zone": annotated("Zone")}},
        }
    }
)


def check(arguments: dict[str, object], **sent: bytes) -> None:
    check_mirrors(MIRRORS, headers.read([(b"mcp-param-" + k.encode(), v) for k, v in sent.items()]), arguments)


@pytest.mark.spec("HDR-22", "HDR-30", "HDR-32", "HDR-35", "HDR-36", "HDR-42")
def test_agreeing_calls_pass() -> None:
    check({})
    check({"region": None, "where": {"zone": None}})
    check({"where": "not an object"})
    check({"region": "eu", "n": 3, "where": {"zone": "a"}}, region=b" eu\t", n=b"3.0", zone=b"=?base64?YQ==?=")
    check({"region": ""}, region=b"")
    check({"region": "eu"}, region=b"eu", unknown=b"ignored")
    check({"region": 5, "n": "5"}, region=b"5", n=b"5")


@pytest.mark.parametrize(
    ("arguments", "sent", "reason"),
    [
        pytest.param({"region": "eu"}, {"region": b"us"}, "differs from", marks=pytest.mark.spec("HDR-32")),
        pytest.param({"region": "eu"}, {"region": b"EU"}, "differs from", marks=pytest.mark.spec("HDR-12")),
        pytest.param({"region": "eu"}, {}, "Region is missing", marks=pytest.mark.spec("HDR-33")),
        pytest.param({"region": ""}, {}, "Region is missing", marks=pytest.mark.spec("HDR-33", "HDR-42")),
        pytest.param({"n": 0}, {}, "N is missing", marks=pytest.mark.spec("HDR-33")),
        pytest.param({}, {"region": b""}, "was sent, but", marks=pytest.mark.spec("HDR-22")),
        pytest.param({"region": None}, {"region": b"null"}, "was sent, but"),
        pytest.param({"zone": "a"}, {"zone": b"a"}, "was sent, but", marks=pytest.mark.spec("HDR-22")),
        pytest.param({"region": "é"}, {"region": b"\xe9"}, "not usable", marks=pytest.mark.spec("HDR-31")),
        pytest.param({"region": "Hello"}, {"region": b"=?base64?SGVsbG8?="}, "not usable"),
        pytest.param({"n": 2**53}, {"n": b"9007199254740992"}, "not usable", marks=pytest.mark.spec("HDR-20")),
    ],
)
def test_disagreeing_calls_are_header_mismatches(
    arguments: dict[str, object], sent: dict[str, bytes], reason: str
) -> None:
    with pytest.raises(HeaderMismatch, match=reason) as caught:
        check(arguments, **sent)
    assert caught.value.code == -32020


@pytest.mark.spec("HDR-22", "HDR-26", "HDR-34", "HDR-42")
def test_the_client_mirrors_what_is_there() -> None:
    assert mirror_values(MIRRORS, {"region": "", "n": 7, "where": {"zone": "Zürich"}, "other": 1}) == {
        "Mcp-Param-Region": "",
        "Mcp-Param-N": "7",
        "Mcp-Param-Zone": "=?base64?WsO8cmljaA==?=",
    }
    assert mirror_values(MIRRORS, {"region": None, "zone": "elsewhere"}) == {}


JSON = st.none() | st.booleans() | st.integers(-(2**53) + 1, 2**53 - 1) | st.text() | st.floats(-1e9, 1e9)


@given(region=JSON, n=JSON, zone=JSON)
def test_what_the_client_sends_the_server_accepts(region: object, n: object, zone: object) -> None:
    arguments = {"region": region, "n": n, "where": {"zone": zone}}
    sent = [(name.lower().encode(), value.encode()) for name, value in mirror_values(MIRRORS, arguments).items()]
    check_mirrors(MIRRORS, headers.read(sent), arguments)


# --- Mcp-Name


@pytest.mark.spec("HDR-30")
def test_names_agree_plain_or_encoded() -> None:
    check_name("echo", "echo")
    check_name("=?base64?ZWNobw==?=", "echo")
    check_name("file:///a%20b", "file:///a%20b")
    check_name("=?base64?PT9iYXNlNjQ/YT89?=", "=?base64?a?=")
    check_name("a\tb", "a\tb")


@pytest.mark.spec("HDR-12")
@pytest.mark.parametrize(
    ("header", "expected", "reason"),
    [
        (None, "echo", "Mcp-Name is missing"),
        ("", "echo", "differs"),
        ("Echo", "echo", "differs"),
        ("caf\xe9", "caf\xe9", "not usable"),
        ("a\x01", "a\x01", "not usable"),
        ("=?base64?ZWNobw?=", "echo", "not usable"),
        ("=?base64?ZWNobw==?=", "=?base64?ZWNobw==?=", "differs"),
    ],
)
def test_names_that_disagree(header: str | None, expected: str, reason: str) -> None:
    with pytest.raises(HeaderMismatch, match=reason):
        check_name(header, expected)
