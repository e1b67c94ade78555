"""Foreign JSON Schemas: dialects, references, bounds, and sentences that do not quote the value."""

from __future__ import annotations

import json
import subprocess
import sys
import tracemalloc

import pytest

from weft.protocol.schema import (
    DIALECTS,
    Problem,
    SchemaError,
    check_object_schema,
    compile_schema,
    json_type,
)


def refused(schema) -> str:
    with pytest.raises(SchemaError) as caught:
        compile_schema(schema)
    return str(caught.value)


def problems_in_child(schema, value) -> list[str]:
    """What is found where, without the bound, the engine would go on for years: in a process that can be killed.

    The engine holds the interpreter's lock, so no timeout within the same process would fire.
    """
    program = (
        "import json, sys\nfrom weft.protocol.schema import compile_schema\n"
        "schema, value = json.load(sys.stdin)\n"
        "print(json.dumps([str(problem) for problem in compile_schema(schema).problems(value)]))"
    )
    given = json.dumps([schema, value])
    try:
        done = subprocess.run(
            [sys.executable, "-c", program], input=given, capture_output=True, text=True, timeout=60, check=False
        )
    except subprocess.TimeoutExpired:
        pytest.fail("It was still checking after 60 s: nothing bounds it.")
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


TOO_LARGE = "It is too large to be checked against this schema; send less."


@pytest.mark.spec("JSCH-01")
def test_the_default_dialect_is_the_newest():
    # prefixItems exists only there; an older dialect would let the value pass
    validator = compile_schema({"prefixItems": [{"type": "integer"}]})
    assert validator.problems([1]) == []
    assert [problem.path for problem in validator.problems(["x"])] == [(0,)]


@pytest.mark.spec("JSCH-02")
def test_a_declared_dialect_is_the_one_that_counts():
    schema = {"items": [{"type": "integer"}]}
    older = compile_schema({"$schema": "http://json-schema.org/draft-07/schema#", **schema})
    assert older.problems(["x"])
    assert "items" in refused(schema)  # an array of schemas is not valid there in the default dialect


@pytest.mark.spec("JSCH-02")
def test_a_schema_that_is_not_valid_under_its_dialect_is_refused_with_its_place():
    assert "'properties/a/type'" in refused({"properties": {"a": {"type": "intger"}}})


def test_a_type_that_is_none_is_told_by_its_name():
    known = "is not a type. The types are array, boolean, integer, null, number, object, string. Correct it."
    assert refused({"properties": {"a": {"type": "intt"}}}).endswith(f"at 'properties/a/type': \"intt\" {known}")
    assert refused({"type": ["string", "x" * 100]}).endswith(f'\'type\': ["string", "{"x" * 48}… {known}')


@pytest.mark.spec("JSCH-03")
@pytest.mark.parametrize("dialect", ["https://example.com/mine", "http://json-schema.org/draft-03/schema#", 5, ["x"]])
def test_an_unknown_dialect_is_an_error_that_names_it_and_those_that_are_known(dialect):
    text = refused({"$schema": dialect, "type": "object"})
    assert str(dialect) in text
    assert all(known in text for known in DIALECTS.values())


@pytest.mark.spec("JSCH-04")
@pytest.mark.parametrize("dialect", DIALECTS)
def test_each_dialect_that_is_documented_works(dialect):
    for spelling in (dialect, dialect + "#"):
        validator = compile_schema({"$schema": spelling, "type": "integer"})
        assert validator.problems(1) == []
        assert len(validator.problems("x")) == 1


@pytest.mark.spec("JSCH-05", "JSCH-08")
@pytest.mark.security("D14")
@pytest.mark.parametrize(
    "reference", ["http://127.0.0.1:9/x.json", "https://example.com/x", "file:///etc/hostname", "other.json"]
)
@pytest.mark.parametrize("place", ["used", "unused"])
def test_a_reference_outside_the_schema_is_refused_and_named(reference, place):
    schema = {"$ref": reference} if place == "used" else {"$defs": {"never": {"$ref": reference}}}
    assert reference in refused(schema)


@pytest.mark.spec("JSCH-05", "JSCH-06")
def test_no_reference_is_fetched(monkeypatch):
    import socket

    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        listener.listen()
        listener.setblocking(False)
        refused({"$ref": f"http://127.0.0.1:{listener.getsockname()[1]}/x.json"})
        with pytest.raises(BlockingIOError):
            listener.accept()


@pytest.mark.spec("JSCH-08")
def test_a_reference_to_nothing_is_refused():
    assert "/$defs/none" in refused({"$ref": "#/$defs/none"})


def test_references_within_the_schema_work():
    validator = compile_schema(
        {
            "$id": "https://example.com/root",
            "$defs": {"a": {"$id": "item", "type": "integer"}, "b": {"$anchor": "here", "type": "string"}},
            "properties": {"x": {"$ref": "item"}, "y": {"$ref": "#here"}, "z": {"$ref": "#/$defs/b"}},
        }
    )
    assert validator.problems({"x": 1, "y": "", "z": ""}) == []
    assert len(validator.problems({"x": "", "y": 1, "z": 1})) == 3


@pytest.mark.spec("JSCH-09")
@pytest.mark.parametrize(
    "schema",
    [
        {"$ref": "#"},
        {"$defs": {"a": {"$ref": "#/$defs/b"}, "b": {"$ref": "#/$defs/a"}}, "$ref": "#/$defs/a"},
        {"$defs": {"a": {"allOf": [{"$ref": "#/$defs/a"}]}}, "anyOf": [{"$ref": "#/$defs/a"}]},
        {"$dynamicAnchor": "x", "$dynamicRef": "#x"},
    ],
)
def test_a_reference_to_itself_ends(schema):
    assert problems_in_child(schema, {"any": ["thing"]}) == []


def test_a_recursive_schema_reads_a_tree():
    tree = {
        "$defs": {"node": {"type": "object", "properties": {"inner": {"items": {"$ref": "#/$defs/node"}}}}},
        "$ref": "#/$defs/node",
    }
    validator = compile_schema(tree)
    assert validator.problems({"inner": [{"inner": []}, {}]}) == []
    assert validator.problems({"inner": [{"inner": [3]}]})[0].path == ("inner", 0, "inner", 0)


@pytest.mark.spec("JSCH-09")
@pytest.mark.security("D14")
def test_references_that_multiply_are_not_followed_without_end():
    definitions = {"d0": {"type": "integer"}}
    for i in range(1, 40):
        below = {"$ref": f"#/$defs/d{i - 1}"}
        definitions[f"d{i}"] = {"anyOf": [{"allOf": [below]}, below]}
    assert problems_in_child({"$defs": definitions, "$ref": "#/$defs/d39"}, "x") == [TOO_LARGE]


@pytest.mark.security("D14")
def test_what_was_too_large_once_is_so_again():
    definitions = {"d0": {"type": "integer"}}
    for i in range(1, 40):
        below = {"$ref": f"#/$defs/d{i - 1}"}
        definitions[f"d{i}"] = {"anyOf": [{"allOf": [below]}, below]}
    validator = compile_schema({"$defs": definitions, "items": {"$ref": "#/$defs/d39"}})
    for value in (["x"], ["x"], [["x"]], ["x"]):
        assert [str(problem) for problem in validator.problems(value)] == [TOO_LARGE]


@pytest.mark.spec("JSCH-09")
@pytest.mark.security("D14")
def test_recursion_that_multiplies_with_the_depth_of_the_value_is_bounded():
    again = {"properties": {"x": {"$ref": "#"}}, "required": ["y"]}
    value: dict = {}
    for _ in range(100):
        value = {"x": value}
    assert problems_in_child({"anyOf": [again, again]}, value) == [TOO_LARGE]


@pytest.mark.spec("JSCH-09")
@pytest.mark.security("D14")
@pytest.mark.parametrize(
    ("schema", "value"),
    [
        ({"items": {"enum": [number + 0.5 for number in range(2000)]}}, [1999.5] * 100),
        ({"items": {"enum": [{"a": number} for number in range(4000)]}}, [{"a": 3999}] * 500),
        ({"items": {"const": 5e-324}}, [5e-324] * 30_000),
        ({"items": {"dependentRequired": {f"p{name}": ["a"] for name in range(6000)}}}, [{}] * 4000),
        ({"items": {"allOf": [{"required": [f"p{name}" for name in range(100)]}] * 40}}, [{"p0": 1}] * 300),
        ({"patternProperties": {f"x{name}": True for name in range(2000)}, "additionalProperties": {"type": "integer"}},
         {f"k{name}": 1 for name in range(6000)}),
        ({"items": {"patternProperties": {f"x{name}": True for name in range(1000)}}}, [{}] * 2000),
        ({"allOf": [{"uniqueItems": True}] * 200}, list(range(20_000))),
        ({"patternProperties": {f"k{name}": {"uniqueItems": True} for name in range(200)}, "x": 1},
         {f"k{name}": [] for name in range(6000)}),
        ({"allOf": [{"pattern": "^a*$"}] * 200}, "a" * 6_000_000),
        ({"items": {"$ref": "#/$defs/0"}, "$defs": {str(at): {"$ref": f"#/$defs/{at + 1}"} for at in range(3000)}
          | {"3000": {}}}, [1]),
    ],
)  # fmt: skip
def test_what_is_listed_multiplies_with_what_is_sent_and_is_bounded(schema, value):
    assert problems_in_child(schema, value) == [TOO_LARGE]


@pytest.mark.spec("JSCH-09")
@pytest.mark.security("D14")
@pytest.mark.parametrize(("keyword", "value"), [("unevaluatedProperties", {"a": 1}), ("unevaluatedItems", [1])])
def test_nested_unevaluated_is_bounded(keyword, value):
    """The engine looks at everything below again at each level, so its time doubles with each."""
    schema: dict = {"properties": {"a": True}, "prefixItems": [True]}
    for _ in range(30):
        schema = {"allOf": [schema], keyword: False}
    assert problems_in_child(schema, value) == [TOO_LARGE]


@pytest.mark.spec("JSCH-09")
@pytest.mark.security("D14")
@pytest.mark.parametrize(("dialect", "id"), [("2020-12", "$id"), ("draft-04", "id")])
def test_references_within_a_part_that_has_an_id_are_bounded(dialect, id):
    uri = next(uri for uri, name in DIALECTS.items() if name == dialect)
    inner: dict = {"d0": {"type": "integer"}}
    for i in range(1, 40):
        below = {"$ref": f"#/$defs/d{i - 1}"}
        inner[f"d{i}"] = {"anyOf": [{"allOf": [below]}, below]}
    part = {id: "https://example.com/inner", "$defs": inner, "allOf": [{"$ref": "#/$defs/d39"}]}
    harmless = {f"d{i}": {} for i in range(40)}
    schema = {"$schema": uri, id: "https://example.com/", "$defs": harmless, "allOf": [part]}
    assert problems_in_child(schema, "x") == [TOO_LARGE]


@pytest.mark.security("D14")
def test_parts_with_an_id_are_bounded():
    def parts(count):
        return {"items": {}, "$defs": {str(at): {"$id": f"https://example.com/{at}"} for at in range(count)}}

    compile_schema(parts(31))
    assert "more than 32 parts with an '$id'" in refused(parts(32))


@pytest.mark.security("D14")
def test_tuples_count_like_arrays():
    validator = compile_schema({"items": {"items": {"enum": [number + 0.5 for number in range(2000)]}}})
    assert "too large" in str(validator.problems(((1999.5,) * 100,))[0])


@pytest.mark.security("D14")
def test_listing_what_is_wrong_is_bounded():
    schema = {"items": {"anyOf": [{"type": "string", "maxLength": 1}] * 50}}
    assert problems_in_child(schema, ["aa"] * 1000) == [
        "It does not fit its schema, but is too large to find out where."
    ]


@pytest.mark.security("D14")
@pytest.mark.parametrize(
    ("schema", "value"),
    [
        ({"items": {"enum": [str(number) for number in range(250)]}}, ["249"] * 60_000),
        ({"items": {"enum": [*map(str, range(60)), None]}}, ["59", None] * 10_000),
        ({"items": {"enum": [*map(str, range(10_000)), None]}}, ["9999"] * 2000),
        ({"items": {"type": "object", "properties": {f"p{name}": {"anyOf": [{"type": "integer"}, {"type": "null"}]}
          for name in range(20)}}}, [{f"p{name}": name for name in range(20)}] * 10_000),
        ({"type": "array", "items": {"type": "number", "minimum": 0.5, "maximum": 99.5}}, [7.25] * 5000),
        ({"items": {"type": "integer", "enum": [1, 2, 3]}}, [1, 2, 3] * 20_000),
        ({"items": {"type": "object", "required": ["a", "b"]}}, [{"a": 1, "b": 2}] * 30_000),
        ({"prefixItems": [{"type": "integer"}] * 300}, [1] * 300),
        ({"items": {"type": "string"}, "uniqueItems": True}, [str(number) for number in range(20_000)]),
        ({"anyOf": [{"type": "string", "pattern": "^a*$"}, {"type": "null"}], "items": {}}, "a" * 16_000_000),
    ],
)  # fmt: skip
def test_much_of_what_is_usual_is_checked(schema, value):
    assert compile_schema(schema).problems(value) == []


JSON = {"anyOf": [{"type": ["string", "number"]}, {"items": {"$ref": "#/$defs/x"}, "type": "array"},
                  {"additionalProperties": {"$ref": "#/$defs/x"}, "type": "object"}]}  # fmt: skip
TREE = {"anyOf": [{"properties": {"left": {"$ref": "#/$defs/x"}, "right": {"$ref": "#/$defs/x"}}},
                  {"properties": {"not": {"$ref": "#/$defs/x"}}, "required": ["not"]}]}  # fmt: skip


@pytest.mark.parametrize(("schema", "names"), [(JSON, ["a", None]), (TREE, ["left", "not", "right"])])
def test_usual_recursion_is_checked_at_any_depth(schema, names):
    """Where its branches are for different members, only one of them counts: so the work does not multiply."""
    value: dict | list | str = {} if schema is TREE else "x"
    for name in names * 30:
        value = [value] if name is None else {name: value}
    assert compile_schema({"$defs": {"x": schema}, "$ref": "#/$defs/x"}).problems(value) == []


@pytest.mark.security("D14")
def test_counting_takes_little_time_and_memory_itself():
    validator = compile_schema({"patternProperties": {f"x{name}": {"not": {}} for name in range(1000)}})
    value = {f"k{name}": 1 for name in range(2000)}
    tracemalloc.start()
    try:
        assert "too large" in validator.problems(value)[0].message
        assert tracemalloc.get_traced_memory()[1] < 16 * 1024 * 1024
    finally:
        tracemalloc.stop()


@pytest.mark.spec("JSCH-09")
@pytest.mark.security("D14", "R12")
def test_size_and_depth_are_bounded():
    room = 262_144 - len(json.dumps({"const": ""}))
    compile_schema({"const": "x" * room})
    assert "has 262145 bytes as JSON, more than the 262144 allowed" in refused({"const": "x" * (room + 1)})

    def nested(levels):
        schema: dict = {}
        for _ in range(levels):
            schema = {"not": schema}
        return schema

    compile_schema(nested(64))
    assert "64 levels" in refused(nested(65))
    assert "64 levels" in refused(nested(3000))


def test_what_is_not_json_is_refused():
    assert "not valid JSON" in refused({"enum": [object()]})
    assert "not valid JSON" in refused({"enum": [float("nan")]})
    loop: dict = {}
    loop["not"] = loop
    assert "not valid JSON" in refused(loop)


@pytest.mark.security("R7", "D14")
@pytest.mark.parametrize("pattern", ["(?=a)b", "(?<!a)b", r"(a)\1", "[", "a{1000}{1000}"])
@pytest.mark.parametrize("keyword", ["pattern", "patternProperties"])
def test_a_pattern_that_is_not_linear_is_refused(pattern, keyword):
    text = refused({keyword: pattern if keyword == "pattern" else {pattern: {}}})
    assert "linear" in text
    assert keyword in text


@pytest.mark.security("R7", "D14")
def test_a_pattern_that_makes_backtracking_engines_explode_is_answered():
    assert len(problems_in_child({"pattern": "^(a|a)*(a+)+$"}, "a" * 100_000 + "b")) == 1


def test_problems_have_a_path_and_a_sentence_and_never_quote_the_value():
    validator = compile_schema(
        {
            "type": "object",
            "properties": {
                "n": {"type": "integer"},
                "c": {"enum": ["x", "y"]},
                "p": {"pattern": "^a"},
                "s": {"minLength": 99},
            },
            "required": ["z"],
        }
    )
    problems = validator.problems({"n": "SECRET", "c": "SECRET", "p": "SECRET", "s": "SECRET"})
    assert {problem.path for problem in problems} == {("n",), ("c",), ("p",), ("s",), ()}
    assert Problem(("n",), 'The value is not of type "integer"; it is a string.') in problems
    assert "SECRET" not in str(problems)


@pytest.mark.security("D4")
def test_problems_are_at_most_as_many_as_asked_for():
    validator = compile_schema({"items": {"type": "integer"}})
    assert len(validator.problems(["x"] * 50)) == 10
    assert len(validator.problems(["x"] * 50, limit=3)) == 3


def test_a_large_value_is_checked_without_listing():
    validator = compile_schema({"items": {"type": "integer"}})
    assert validator.problems([1] * 200_000) == []
    assert "too large to find out where" in validator.problems([*range(200_000), "x"])[0].message
    assert "too large to be checked" in validator.problems([1] * 2_000_000)[0].message


def test_what_is_not_a_json_value_does_not_fit():
    assert compile_schema({"type": "object"}).problems(object())


@pytest.mark.spec("TOOL-06")
@pytest.mark.parametrize("schema", [{}, {"type": "array"}, {"type": ["object", "null"]}, {"type": None}])
def test_the_root_of_an_input_schema_is_an_object(schema):
    with pytest.raises(SchemaError, match='"type": "object"'):
        check_object_schema(schema)
    check_object_schema({"type": "object"})


@pytest.mark.parametrize(
    ("value", "words"),
    [(None, "null"), (True, "a boolean"), (1, "an integer"), (1.5, "a number"), ({}, "an object"), ([], "an array")],
)
def test_json_types_in_words(value, words):
    assert json_type(value) == words


def test_the_engine_is_imported_only_when_a_schema_is_compiled():
    code = "import sys, weft.protocol.schema, weft.server.signature.signature; print('jsonschema_rs' in sys.modules)"
    run = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert run.stdout.strip() == "False"
