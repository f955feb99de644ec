#!/usr/bin/env python3
"""Writes schemas and grammars with texts that fit them and texts that do not, one case a line.

usage: tests/data/make_schemas.py > tests/data/schemas.jsonl
A case: {"kind": "schema" or "gbnf", "text", "good", "bad", and "error" (part of the sentence) where
it has to be refused}. The first part is by hand; the rest is generated in the manner of schemas that
tools and APIs publish, with random documents for each.
"""
import json
import random

CASES = []


def S(schema, good=(), bad=(), error=None):
    case("schema", schema if isinstance(schema, str) else json.dumps(schema), good, bad, error)


def G(text, good=(), bad=(), error=None):
    case("gbnf", text, good, bad, error)


def case(kind, text, good, bad, error):
    entry = {"kind": kind, "text": text, "good": list(good), "bad": list(bad)}
    if error:
        entry["error"] = error
    CASES.append(entry)


# ---- by hand ----

G('root ::= "a" b*\nb ::= [x-z] | "q" "r"?',["a","axyz","aqqrx"],["","b","aa"])
G('root ::= ("a" | "b"){2,3} "."',["ab.","aab."],["a.","aaaa."])
G('root ::= [^"\\n]{20,30}',["x"*20,"é"*30],["x"*19,"x"*31,'"'*20])
G('root ::= .{2}',["é☃"],["a","abc"])
G('root ::= root "a" | "b"',error="left-recursive")
G('root ::= a\na ::= b?a',error="there is no rule")
G('root ::= ("a"',error="not closed")
G('root ::= *',error="nothing to repeat")
G('root ::= "a" root',error="no text fits")
G('root ::= "\\u00e9" # c\n  | "\\x41"',["é","A"],["B"])
G('root ::= "[" (root ("," root)*)? "]"',["[]","[[],[[]]]"],["[","[[]"])
S({},['1','"a"','{"a": [1, 2, {}]}','[]','null','true','-0.5e10','"\\u00e9\\ud83d\\ude00\\n"'],['tru','01','"\\ud83d"','{"a":}','[1,]'])
S({"type":"object"},['{}','{"a":1}','{"a": {"b": []}}','{\n  "a": 1,\n  "b": 2\n}'],['[]','{,}','{"a":1,}'])
S({"type":"object","properties":{"a":{"type":"integer"},"b":{"type":"string"}},"required":["a"],"additionalProperties":False},['{"a":1}','{"a":-12, "b":"x"}'],['{}','{"b":"x"}','{"a":1.5}','{"a":1,"c":2}','{"a":01}'])
S({"type":"object","properties":{"a":{"type":"integer"}}},['{"a":1}','{"b":"x"}','{"a":1,"ab":2,"b":[]}','{}'],['{"a":"x"}','{"b":1,"a":"x"}'])
S({"type":"array","items":{"type":"boolean"},"minItems":2,"maxItems":3},['[true,false]','[true, true, true]'],['[]','[true]','[true,true,true,true]'])
S({"type":"array","prefixItems":[{"type":"integer"},{"type":"string"}],"items":False},['[]','[1]','[1,"a"]'],['[1,"a",2]','["a"]'])
S({"type":"array"},['[]','[1]','[1,2,3]'])
S({"type":"string","minLength":2,"maxLength":3},['"ab"','"é☃a"','"\\n\\u00e9"'],['"a"','"abcd"'])
S({"type":"string","pattern":"^[a-z]+\\d{2}$"},['"ab12"'],['"12"','"ab123"','"Ab12"'])
S({"type":"string","pattern":"foo"},['"foo"','"xxfooyy\\u00e9"','"fofoo"'],['"fo"'])
S({"type":"string","pattern":"^a|b$"},['"axx"','"xxb"','"a"'],['"xa"'])
S({"type":"string","pattern":"^(a|b)*$","minLength":2,"maxLength":3},['"ab"','"abb"'],['"a"','"abba"'])
S({"type":"string","pattern":"^+[a-z]$"},error="nothing to repeat")
S({"type":"string","pattern":"^{2}times$"},error="nothing to repeat")
S({"type":"string","pattern":"(?=a)"},error="look-around")
S({"type":"string","pattern":"("*3000},error="deeper")
S({"type":"string","pattern":"a\"\\\\b\\n"},['"xa\\"\\\\b\\n"'],['"a"'])
S({"type":"integer","minimum":5,"maximum":123},['5','9','10','99','100','123'],['4','124','-5','005','1000'])
S({"type":"integer","minimum":-5,"maximum":3},['-5','-1','0','3'],['-6','4','-0'])
S({"type":"integer"},['0','-1','9223372036854775807','-9223372036854775808'],['9223372036854775808','1.0'])
S({"type":"integer","exclusiveMinimum":0},['1','99'],['0','-1'])
S({"type":"integer","minimum":0.5,"maximum":2.5},['1','2'],['0','3'])
S({"type":"number","minimum":0,"maximum":1},['0','1','0.5','0.001','1.0','1.000'],['1.1','-0.1','2','1.01'])
S({"type":"number","exclusiveMinimum":1.25,"maximum":10.5},['1.26','1.250001','2','10.5','10.49','10.50','9.99'],['1.25','1.2','10.51','11','1.250'])
S({"type":"number","minimum":-2.5,"exclusiveMaximum":-1},['-2.5','-1.1','-2'],['-1','-2.6','0','-1.0'])
S({"type":"integer","multipleOf":5},['0','5','-10','125'],['1','7'])
S({"type":"integer","multipleOf":5,"minimum":1,"maximum":20},['5','20'],['0','25','6'])
S({"type":"number","multipleOf":0.01},error="multipleOf")
S({"enum":["a",1,None,{"x":[1]}]},['"a"','1','null','{"x":[1]}'],['"b"'])
S({"const":"é\""},['"é\\""'])
S({"type":"string","enum":["a","bb",3],"minLength":2},['"bb"'],['"a"','3'])
S({"anyOf":[{"type":"string"},{"type":"integer"}]},['"x"','3'],['null','1.5'])
S({"oneOf":[{"type":"string"},{"type":"integer"}]},['"x"','3'],['null'])
S({"oneOf":[{"type":"number"},{"type":"integer"}]},error="oneOf")
S({"oneOf":[{"type":"object","properties":{"k":{"const":"a"},"x":{"type":"integer"}},"required":["k"]},{"type":"object","properties":{"k":{"const":"b"}},"required":["k"]}]},['{"k":"a","x":1}','{"k":"b","x":"q"}'],['{"k":"c"}','{"k":"a","x":"q"}'])
S({"allOf":[{"type":"object","properties":{"a":{"type":"integer"}},"required":["a"]},{"properties":{"b":{"type":"string"}},"required":["b"]}]},['{"a":1,"b":"x"}'],['{"a":1}','{"b":"x"}'])
S({"allOf":[{"minimum":3},{"maximum":5}],"type":"integer"},['3','5'],['2','6'])
S({"type":"object","properties":{"a":{"type":"integer"}},"additionalProperties":False,"allOf":[{"properties":{"b":{"type":"integer"}}}]},['{"a":1}','{}'],['{"b":1}'])
S({"$ref":"#/$defs/n","$defs":{"n":{"type":"object","properties":{"v":{"type":"integer"},"next":{"anyOf":[{"$ref":"#/$defs/n"},{"type":"null"}]}},"required":["v","next"],"additionalProperties":False}}},['{"v":1,"next":{"v":2,"next":null}}'],['{"v":1}','{"v":1,"next":{}}'])
S({"type":"object","properties":{"c":{"type":"array","items":{"$ref":"#"}}},"additionalProperties":False},['{"c":[{"c":[]},{}]}'],['{"c":1}'])
S({"$ref":"#"},error="in a circle")
S({"$ref":"#/$defs/x"},error="leads nowhere")
S({"type":"object","properties":{"a":{"$ref":"#/properties/b"},"b":{"type":"string"}},"required":["a"]},['{"a":"x"}'],['{"a":1}'])
S({"type":"object","patternProperties":{"^x_":{"type":"integer"}},"additionalProperties":False},['{"x_a":1}','{}'],['{"y":1}','{"x_":"s"}'])
S({"type":"object","patternProperties":{"^x_":{"type":"integer"}},"additionalProperties":{"type":"string"}},['{"x_a":1,"y":"s"}','{"x":"s"}'],['{"y":1}','{"x_":"s"}'])
S({"type":"object","additionalProperties":{"type":"integer"},"minProperties":1},['{"a":1}'],['{}'])
S({"type":"object","propertyNames":{"pattern":"^[a-z]+$"},"additionalProperties":True},['{"a":1}'],['{"A":1}'])
S({"type":["string","null"]},['"x"','null'],['1'])
S({"type":"string","nullable":True},['"x"','null'],['1'])
S({"type":"object","not":{}},error='"not"')
S({"type":"array","uniqueItems":True},error='"uniqueItems"')
S({"type":"object","properties":{"a":{"if":{}}}},error='#/properties/a')
S({"type":"string","format":"date"},['"2024-02-29"','"1999-12-31"'],['"2023-02-29"','"2024-13-01"','"0000-01-01"','"2100-02-29"'])
S({"type":"string","format":"date-time"},['"2024-02-29T23:59:59Z"','"2024-01-01T00:00:00.5+01:00"'],['"2024-01-01"'])
S({"type":"string","format":"uuid"},['"123e4567-e89b-12d3-a456-426614174000"'],['"123"'])
S({"type":"string","format":"ipv4"},['"1.2.3.4"','"255.255.255.255"'],['"256.1.1.1"','"1.2.3"'])
S({"type":"string","format":"ipv6"},['"::1"','"2001:db8::ff00:42:8329"','"1:2:3:4:5:6:7:8"'],['":::"','"1:2:3:4:5:6:7:8:9"'])
S({"type":"string","format":"email"},['"a.b@example.com"'],['"a"','"@x.y"'])
S({"type":"string","format":"uri"},['"https://example.com/a?b=c#d"','"mailto:a@b.c"'],['"foo"'])
S({"type":"string","format":"duration"},['"P1DT2H"','"PT5M"','"P3W"'],['"P"','"PT"'])
S({"type":"string","format":"regex"},error="format")
S({"type":"string","format":"whatever"},['"x"'])
S({"properties":{"a":False},"type":"object","required":["a"]},error="no text fits")
S(True,['1'])
S(False,error="no text fits")
S("[]",error="schema")
S("{",error="JSON schema")

# ---- generated ----

rng = random.Random(20261129)
WORDS = ("id name title description status kind type city country address street zip email phone "
         "age price amount currency quantity count total date created_at updated_at start end url "
         "tags items results score confidence summary content language code message reason author "
         "user owner parent children options settings enabled visible priority level category "
         "query limit offset latitude longitude unit temperature path file line column").split()
TEXTS = ["", "a", "Hello, world", "na\u00efve caf\u00e9", "line\nbreak", "tab\t", "quote \" and \\",
         "\u4f60\u597d", "emoji \U0001F600", "/slash/", "x" * 30]


def text():
    return rng.choice(TEXTS)


def string():
    """A schema of strings and a function that makes one."""
    way = rng.randrange(9)
    if way < 3:
        return {"type": "string"}, text
    if way == 3:
        low, high = rng.randrange(4), rng.randrange(4, 40)
        return ({"type": "string", "minLength": low, "maxLength": high},
                lambda: (text() + "abcdef")[:max(low, rng.randrange(low, high + 1))])
    if way == 4:
        values = rng.sample(WORDS, rng.randrange(1, 6))
        return {"type": "string", "enum": values}, lambda: rng.choice(values)
    if way == 5:
        pattern, make = rng.choice([
            ("^[A-Z]{3}-\\d{4}$", lambda: "ABC-%04d" % rng.randrange(10000)),
            ("^[a-z0-9]+(?:-[a-z0-9]+)*$", lambda: rng.choice(["a", "a-b", "x9-yy-0"])),
            ("^(yes|no|maybe)$", lambda: rng.choice(["yes", "no", "maybe"])),
            ("\\d{3}", lambda: "x%03dy" % rng.randrange(1000)),
            ("^#[0-9a-fA-F]{6}$", lambda: "#%06x" % rng.randrange(1 << 24)),
            ("^\\+?[1-9]\\d{6,14}$", lambda: "+4917%07d" % rng.randrange(10 ** 7)),
            ("^v\\d+\\.\\d+\\.\\d+$", lambda: "v%d.%d.0" % (rng.randrange(20), rng.randrange(99))),
            ("^[^@ ]+@[^@ ]+$", lambda: "a.b@c.de")])
        schema = {"type": "string", "pattern": pattern}
        if rng.random() < 0.3:
            schema["maxLength"] = 40
        return schema, make
    if way == 6:
        form, make = rng.choice([
            ("date", lambda: "20%02d-%02d-%02d" % (rng.randrange(100), rng.randrange(1, 13),
                                                   rng.randrange(1, 29))),
            ("date-time", lambda: "2024-05-%02dT%02d:00:00Z" % (rng.randrange(1, 32),
                                                               rng.randrange(24))),
            ("uuid", lambda: "%08x-1111-4222-8333-%012x" % (rng.getrandbits(32),
                                                            rng.getrandbits(48))),
            ("ipv4", lambda: "%d.0.255.%d" % (rng.randrange(256), rng.randrange(256))),
            ("email", lambda: rng.choice(["a@b.de", "first.last@mail.example.org"])),
            ("uri", lambda: "https://example.org/a/%d?x=y#z" % rng.randrange(100))])
        return {"type": "string", "format": form}, make
    if way == 7:
        value = rng.choice(WORDS)
        return {"const": value}, lambda: value
    return {"type": ["string", "null"]}, lambda: rng.choice([None, "a", "b c"])


def number():
    way = rng.randrange(6)
    if way == 0:
        return {"type": "integer"}, lambda: rng.randrange(-10 ** 9, 10 ** 9)
    if way == 1:
        low = rng.randrange(-200, 200)
        high = low + rng.randrange(0, 5000)
        return ({"type": "integer", "minimum": low, "maximum": high},
                lambda: rng.randint(low, high))
    if way == 2:
        return {"type": "number"}, lambda: rng.choice([0, 1.5, -2.25, 1e-7, 12345.678, 3e20])
    if way == 3:
        low = rng.choice([0, -1.5, 0.25, 10])
        high = low + rng.choice([1, 0.5, 99.75])
        return ({"type": "number", "minimum": low, "maximum": high},
                lambda: rng.choice([low, high, round((low + high) / 2, 4)]))
    if way == 4:
        low = rng.choice([0, 1, 100])
        return {"type": "integer", "exclusiveMinimum": low}, lambda: low + rng.randrange(1, 10 ** 6)
    step = rng.choice([2, 5, 10, 25])
    return ({"type": "integer", "minimum": 0, "maximum": 100, "multipleOf": step},
            lambda: step * rng.randrange(0, 100 // step + 1))


def array(depth):
    items, make = any_of_depth(depth - 1)
    low, high = rng.randrange(3), rng.randrange(3, 7)
    schema = {"type": "array", "items": items}
    if rng.random() < 0.4:
        schema["minItems"], schema["maxItems"] = low, high
        return schema, lambda: [make() for _ in range(rng.randint(low, high))]
    if rng.random() < 0.2:
        first, make_first = any_of_depth(depth - 1)
        schema["prefixItems"] = [first]
        return schema, lambda: [make_first()] + [make() for _ in range(rng.randrange(3))]
    return schema, lambda: [make() for _ in range(rng.randrange(4))]


def record(depth, extra=None):
    names = rng.sample(WORDS, rng.randrange(1, 7))
    parts = {n: any_of_depth(depth - 1) for n in names}
    required = [n for n in names if rng.random() < 0.6]
    schema = {"type": "object", "properties": {n: parts[n][0] for n in names}}
    if required:
        schema["required"] = required
    closed = rng.random() < 0.7
    if closed:
        schema["additionalProperties"] = False
    if rng.random() < 0.3:
        schema["title"], schema["description"] = "A " + names[0], "What a " + names[0] + " is"

    def make():
        out = {n: parts[n][1]() for n in names if n in required or rng.random() < 0.5}
        if not closed and rng.random() < 0.3:
            out["zz_further"] = [1, {"a": None}]
        return out
    return schema, make


def mapping(depth):
    value, make = any_of_depth(depth - 1)
    if rng.random() < 0.5:
        return ({"type": "object", "additionalProperties": value},
                lambda: {n: make() for n in rng.sample(WORDS, rng.randrange(3))})
    return ({"type": "object", "patternProperties": {"^x_[a-z]+$": value},
             "additionalProperties": False},
            lambda: {"x_" + n: make() for n in rng.sample(["abc", "def", "q"], rng.randrange(3))})


def choice(depth):
    if rng.random() < 0.5:
        one, make = any_of_depth(depth - 1)
        return {"anyOf": [one, {"type": "null"}]}, lambda: make() if rng.random() < 0.7 else None
    kinds = rng.sample(WORDS, 3)
    branches, makers = [], []
    for kind in kinds:
        value, make = any_of_depth(depth - 1)
        branches.append({"type": "object", "properties": {"kind_": {"const": kind}, "value": value},
                         "required": ["kind_", "value"], "additionalProperties": False})
        makers.append(lambda kind=kind, make=make: {"kind_": kind, "value": make()})
    return {rng.choice(["oneOf", "anyOf"]): branches}, lambda: rng.choice(makers)()


def any_of_depth(depth):
    way = rng.random()
    if depth <= 0 or way < 0.35:
        return rng.choice([string, string, number])() if rng.random() < 0.9 else \
            ({"type": "boolean"}, lambda: rng.random() < 0.5)
    return (record if way < 0.65 else array if way < 0.8 else mapping if way < 0.88
            else choice)(depth)


def tree():
    value, make = string()
    node = {"type": "object", "properties": {"value": value, "children": {
        "type": "array", "items": {"$ref": "#/$defs/node"}, "maxItems": 3}},
        "required": ["value", "children"], "additionalProperties": False}

    def grow(depth):
        return {"value": make(), "children": [grow(depth - 1) for _ in range(rng.randrange(3))]
                if depth > 0 else []}
    return {"$schema": "https://json-schema.org/draft/2020-12/schema", "$defs": {"node": node},
            "$ref": "#/$defs/node"}, lambda: grow(2)


def merged():
    one, make_one = record(1)
    two, make_two = record(1)
    for schema in one, two:
        schema.pop("additionalProperties", None)
    shared = set(one["properties"]) & set(two["properties"])
    if shared:
        return merged()

    def make():
        out = dict(make_one())
        out.pop("zz_further", None)
        more = dict(make_two())
        more.pop("zz_further", None)
        out.update(more)
        return out
    return {"allOf": [one, {"$ref": "#/$defs/two"}], "$defs": {"two": two}}, make


def generate(n):
    for i in range(n):
        schema, make = (tree() if i % 25 == 0 else merged() if i % 25 == 1
                        else record(3) if i % 3 else any_of_depth(3))
        good = []
        for _ in range(3):
            document = make()
            good.append(json.dumps(document, ensure_ascii=rng.random() < 0.3,
                                   **rng.choice([{}, {"indent": 2},
                                                 {"separators": (",", ":")}])))
        S(schema, [g for g in good if len(g) < 400][:2])


generate(520)
for entry in CASES:
    print(json.dumps(entry, ensure_ascii=False, separators=(",", ":")))
