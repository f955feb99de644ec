#!/usr/bin/env python3
"""Writes tests/data/template/expressions.jsonl and variants.jsonl: what Jinja2 renders.

    python3 tools/gen_template_cases.py

Needs Jinja2 (3.1.6 was used), set up as transformers sets it up for chat templates: the immutable
sandbox, trim_blocks and lstrip_blocks, break and continue, generation blocks, json.dumps as tojson.
Tests read what this wrote; they do not run it.

expressions.jsonl: first a line {"variables"}, then {"template", "expected"} or {"template",
"error"} with the type of the exception. variants.jsonl: {"template" (a file beside it), "messages",
"tools", "variables", "expected" or "error"}.
"""
import copy
import datetime
import json
from pathlib import Path

import jinja2
from jinja2 import nodes
from jinja2.ext import Extension, loopcontrols
from jinja2.sandbox import ImmutableSandboxedEnvironment

DATA = Path(__file__).resolve().parent.parent / "tests/data/template"
NOW = 1700000000  # 2023-11-14 22:13:20 UTC, a Tuesday


class Generation(Extension):
    tags = {"generation"}

    def parse(self, parser):
        line = next(parser.stream).lineno
        body = parser.parse_statements(["name:endgeneration"], drop_needle=True)
        return nodes.CallBlock(self.call_method("_body"), [], [], body).set_lineno(line)

    def _body(self, caller):
        return caller()


def raise_exception(message):
    raise jinja2.exceptions.TemplateError(message)


def tojson(x, ensure_ascii=False, indent=None, separators=None, sort_keys=False):
    return json.dumps(x, ensure_ascii=ensure_ascii, indent=indent, separators=separators,
                      sort_keys=sort_keys)


def strftime_now(form):
    return datetime.datetime.fromtimestamp(NOW, datetime.timezone.utc).replace(
        tzinfo=None).strftime(form)


ENVIRONMENT = ImmutableSandboxedEnvironment(trim_blocks=True, lstrip_blocks=True,
                                            extensions=[Generation, loopcontrols])
ENVIRONMENT.filters["tojson"] = tojson
ENVIRONMENT.globals["raise_exception"] = raise_exception
ENVIRONMENT.globals["strftime_now"] = strftime_now


def rendered(source, variables):
    try:
        # A filter may change a list in place ("indent" does).
        return {"expected": ENVIRONMENT.from_string(source).render(**copy.deepcopy(variables))}
    except Exception as problem:
        return {"error": type(problem).__name__, "text": str(problem)[:200]}


VARIABLES = {'s': 'Hello, World',
 'e': '',
 'u': 'Ünïcödé ß ﬁ ΟΔΟΣ',
 'ws': '  \n a b\t c \n',
 'i': 7,
 'n': -3,
 'z': 0,
 'f': 2.5,
 'g': 1e-07,
 'h': 1e+21,
 'b': True,
 'no': None,
 'fa': False,
 'l': [3, 1, 2],
 'ls': ['b', 'a', 'C', 'B'],
 'le': [],
 'd': {'b': 1, 'a': [1, 'x'], 'items': 5, 'k y': {'z': None}},
 'm': [{'n': 'x', 'v': 2}, {'n': 'y', 'v': 1}, {'n': 'x', 'v': 3, 'o': {'p': 1}}],
 'q': 'it\'s "q" \\ \n\t\x7f\u200bé😀',
 'q1': "it's",
 'lines': 'a\nb\r\nc\n\nd',
 'mix': [1, '1', 1.0, True, None, [1], {'a': 1}],
 'fl': [1.5, -0.0, 1e+17, 1e+16, 123456.789, 0.1, 0.3333333333333333],
 'big': 9223372036854775807,
 'w': 12345678901234567890,
 'wn': -98765432109876543210,
 'wp': 2 ** 64,
 'wm': 2 ** 63,
 'we': 10 ** 308,
 'wl': [2 ** 64, 2 ** 63, -2 ** 63 - 1, -2 ** 64, 7, 1.5e19, 2 ** 63 - 1, -1e20, True],
 'wd': {'id': 12345678901234567890, 'l': [18446744073709551615]},
 'wj': {'a': 2 ** 64, 'b': 2 ** 63, 'c': -2 ** 64},
 'path': 'a/b//c',
 'tag': '<b>&"\'',
 'x': 'X',
 't': True,
 'nest': [[1, 2], [3]],
 'dd': {'a': 1, 'b': 2},
 'r': [{'r': 'u', 'c': 'a'}, {'r': 's', 'c': 'b'}, {'r': 'u', 'c': 'c'}]}

# Each stands in {{ }}.
EXPRESSIONS = r"""
1
-1
1.5
1e5
1E-3
0x1F
0o17
0b101
1_000
1.0
100000000000000000000.0
true
True
none
None
'a'
"a"
'a\nb'
'a\x41\u00e9\101\q'
'a' 'b'
(1,)
(1,2)
()
[]
[1,2,]
{}
{'a':1}
{'a':1,'b':[1,2]}
[1,[2,(3,4)],{'a':none}]
1+2
1+2*3
(1+2)*3
7//2
-7//2
7%3
-7%3
7%-3
7/2
6/2
2**3
2**-1
2**3**2
-2**2
2.5//1
-2.5//1
2.5%1
-2.5%1
7.5%-2
1~2
1~'a'~none~true
'a'~1.0
1+1.0
true+1
'a'+'b'
'a'*3
3*'a'
[1]*3
[1]+[2]
(1,)+(2,)
'a'+1
1+'a'
none+1
[]+1
1/0
1//0
1%0
1.0/0
0**-1
0.0**-1
10**18
-9223372036854775807-1
1==1.0
1==true
0==false
'a'=='a'
[1]==[1.0]
(1,)==[1]
{'a':1}=={'a':1.0}
none==none
none==false
''==none
1<2<3
1<3<2
3>2>=2
1!=2
'a'<'b'
'a'<'B'
[1,2]<[1,3]
[1]<[1,0]
(1,'a')<(1,'b')
1<'a'
none<1
1 in [1,2]
1.0 in [1]
'a' in 'abc'
'' in 'abc'
'z' not in 'abc'
1 in 'abc'
'a' in {'a':1}
1 in {'a':1}
1 in none
not true
not 0
not ''
not []
not {}
1 and 2
0 and 2
1 or 2
0 or ''
not 1 == 2
1 if true else 2
1 if false else 2
1 if false
(1 if false) is defined
1 if 0 else 2 if 0 else 3
-1|abs
-1.5|abs
+true
-true
- -1
not not 1
1 is defined
missing is defined
missing is not defined
missing.y
missing is undefined
[missing]
{'a':x}
missing~1
x==y
x==none
missing!=1
missing or 1
missing|default('d')
missing|length
missing|list
missing|upper
missing|trim
missing|join
missing|first
missing+1
missing<1
missing in [1]
1 in missing
'a' in missing
missing in 'abc'
d.items()
d.items()|list
d.keys()
d.keys()|list
d.values()|list
d.get("b")
d.get("zz")
d.get("zz",1)
d.get()
d.b
d["b"]
d["items"]
d.zz
d["k y"]
d["k y"].z
d|length
d|list
d|items|list
d|dictsort
d|dictsort(by="value")
d|dictsort(reverse=true)
d|tojson
d|tojson(indent=1)
d|tojson(indent="\t")
d|tojson(indent=0)
d.pop("b")
d.update({})
l.append(1)
l.pop()
l.sort()
l.index(2)
l.index(9)
l.count(1)
l.x
l["x"]
l.0
l.1
d.0
m|map(attribute="n")|list
m|map(attribute="n")|unique|list
m|map(attribute="o.p")|list
m|map(attribute="o.p",default=0)|list
m|map(attribute="zz",default="Q")|join(",")
m|selectattr("o")|list
m|selectattr("o","defined")|list|length
m|rejectattr("v","gt",1)|map(attribute="v")|list
m|selectattr("n","equalto","x")|map(attribute="v")|sum
m|selectattr("n","==","x")|list|length
m|sort(attribute="v")|map(attribute="v")|list
m|sum(attribute="v")
m|sum("v",10)
m|join(",",attribute="n")
m|min(attribute="v")
m|max(attribute="v")
ls|sort
ls|sort(reverse=true)
ls|sort(case_sensitive=true)
ls|unique|list
ls|unique(true)|list
ls|min
ls|max
ls|max(case_sensitive=true)
mix|sort
mix|unique|list
mix|select("string")|list
mix|select("number")|list
mix|reject("none")|list
l|select("odd")|list
l|select("divisibleby",2)|list
l|map("string")|list
l|map("float")|list
l|map("round",1)|list
ls|map("replace","a","Z")|list
ls|map("nofilter")|list
l|select("notest")|list
l|map|list
l|batch(2,"-")|list
range(3)|list
range(1,4)|list
range(5,1,-2)|list
range(0)|list
range(3)
range(1,9,2)
range(3)[1]
range(3)|length
range(3) == range(3)
range(100001)
range(1,2,0)
range("a")
range(1.5)
5 in range(10)
range(10)|sum
dict(a=1,b=2)
dict({"x":1},y=2)
dict([("a",1)])
dict([1])
namespace(a=1)
namespace(a=1).a
namespace(a=1).b
namespace({"q":2}).q
namespace(a=1)["a"]
{1:2}[1]
{1:2}[1.0]
{1:2}[true]
{(1,2):3}[(1,2)]
{[1]:2}
{none:1}[none]
{true:1}
{1:1,1.0:2,true:3}
{"a":1}["a"]["b"]
{1:2,"x":none,2.5:[],true:1,none:0}|tojson
{(1,2):1}|tojson
1e400
-1e400|tojson
(1e400-1e400)
1e400|string
1e22
1e15
1e16
123456789012345678
0.1+0.2
1.0e-5
0.0001
5e-324
1.7976931348623157e308
2.0**0.5
100.0
-0.0
1/3
1e23
"%s %s"%(1,2)
"%s"%[1]
"%s"%(1,)
"%s %s"%(1,)
"%s"%(1,2)
"%d"%1.9
"%d"%"x"
"%05d|%-5d|%+d"%(1,2,3)
"%x %X %o"%(255,255,8)
"%.2f"%2.675
"%.0f"%2.5
"%f"%1
"%%"
"%5s|%-5s|%.2s"%("a","b","cde")
"%(a)s"%{"a":1}
"%(a)s"|format(a=1)
"%s"|format(none)
"%s,%s"|format(1,2)
"%q"%1
"%"%1
"%s"%{"a":1}
"{} {}".format(1,2)
"{0}{1}{0}".format("a","b")
"{x}".format(x=1)
"{{}}".format()
"{".format()
"42"|int
"42.9"|int
" 12 "|int
"0x1f"|int(0,16)
"1f"|int(0,16)
"z"|int
"z"|int(none)
"1_000"|int
"1__0"|int
"-5"|int
"+5"|int
""|int
none|int
true|int
[]|int
"1e3"|int
"inf"|int
"nan"|float
"-inf"|float
"1e3"|float
"1_0.5"|float
".5"|float
"5."|float
"."|float
"1e"|float
"0b11"|int(0,2)
"12"|int(base=8)
2.5|round
3.5|round
-2.5|round
2.675|round(2)
1234.5|round(-2)
1250|round(-2)
1350|round(-2)
15|round(-1)
25|round(-1)
42|round
42.4|round(0,"ceil")
42.6|round(method="floor")
1.005|round(2)
1e300|round(2)
0.5|round
5.015|round(2)
3|round(1)
3|round(1,"ceil")
3.14159|round(3)
1|round("a")
-7|abs
"a"|abs
none|abs
true|abs
1 is sameas 1
none is sameas none
true is sameas true
true is sameas 1
[] is sameas []
"a" is sameas "a"
1 is true
true is true
0 is false
false is false
3 is divisibleby 3
3 is divisibleby(0)
"a" is in "abc"
1 is in [1]
"A" is upper
"a" is lower
"Aa" is upper
1 is upper
"x" is escaped
("x"|safe) is escaped
(1,2) is sequence
{} is sequence
{} is mapping
"" is string
1.0 is float
1 is integer
true is integer
true is number
true is boolean
range is callable
missing is callable
missing is iterable
missing is sequence
missing is mapping
namespace() is mapping
namespace() is iterable
[1,2,3]|last
[]|last
[]|first
""|first
{}|first
[]|first is undefined
[]|max
[]|min
[]|sum
[1,2]|sum(start=10)
["a"]|sum
["a","b"]|sum(start="")
[[1],[2]]|sum(start=[])
[1,2.5]|sum
(1,2)|list
"abc"|list
"abc"|reverse
[1,2]|reverse|list
{"a":1,"b":2}|reverse|list
"abc"|batch(2)|list
"abc"|sort
[3,1]|sort
[1,"a"]|sort
[none,none]|sort
[{"a":1},{"a":1}]|sort
[[2],[1]]|sort
[(1,"b"),(1,"a")]|sort
[true,0,2]|sort
[0.5,0,1]|sort
"a,b"|replace(",","
")
"aaa"|replace("a","b",2)
"aaa"|replace("a","b",count=1)
12|replace(1,3)
"abc"|replace("","-")
" a "|trim
"xxaxx"|trim("x")
"é"|upper
"ß"|upper
"ß"|title
"ß"|capitalize
"ﬁx"|title
"ﬁx".title()
"ΑΣ"|lower
"ΑΣ Σ"|lower
"ΑΣ.Α"|lower
"İ"|lower
"ǅ"|upper
"ǆ".title()
"hello world-foo (bar) [baz] a1b"|title
"hello world-foo a1b it's".title()
"HELLO wORLD"|capitalize
"a b"|wordcount
"a-b_c d1"|wordcount
"<&>\"'"|escape
"<"|escape|escape
("<"|escape)+"<"
"<"+("<"|escape)
("<"|safe)*2
("<b>"|safe)|upper
("<"|safe).replace("<","&")
("a"|safe).join(["<","<"|safe])
["<","<"|safe]|join("&")
["<"]|join("&"|safe)
("%s"|safe)%"<"
"%s"%("<"|safe)
("<%s>"|safe)|format("&")
("<"|safe)|list
("<"|safe)|first
("<a"|safe)[0]~"<"
(("<a"|safe)[0])+"<"
("<a"|safe).split("<")|list
("<\na"|safe)|indent
("<"|safe)|string|upper+"<"
("<"|safe)|trim+"<"
("<"|safe)|replace("<",">")+"<"
("<"|safe)|tojson
[("<"|safe)]
("<"|safe)=="<"
strftime_now("%Y-%m-%d %H:%M:%S %B %b %A %a %j %y %p %I %e %F %T %D %R %u %w %% %x %X %h")
strftime_now("%-d %-m %-H %-I")
strftime_now("%d %B, %Y")
raise_exception("boom")
raise_exception("a"~1)
s|selectattr("x")|list
"abc"|map("upper")|join
none|map("upper")|list
0|select|list
5|select|list
5|map("upper")|list
none|list
5|list
none|join
5|join
none|length
5|first
none|tojson
1.0|tojson
[1.0,1e-7,1e16,1e22]|tojson
"\u2028\u00e9"|tojson
"\u2028é😀"|tojson(true)
"\x7f\x00\x1f"|tojson
"\x7f\x00\x1f"|tojson(true)
[]|tojson(indent=2)
[[],{}]|tojson(indent=2)
{"a":[1,{"b":2}]}|tojson(indent=4)
{"b":1,"a":2}|tojson(sort_keys=true)
{"b":1,1:2}|tojson(sort_keys=true)
[1,2]|tojson(separators=(", ",":"))
[1,2]|tojson(none,2)
range(2)|tojson
missing|tojson
(1,2)|tojson
d.items()|tojson
[1]|tojson(indent=true)
[1]|tojson(indent=false)
[1]|tojson(indent=-1)
w
wn
-w
-wn
- -w
-wm
--wm
+w
w|abs
wn|abs
w|string
w|string|length
w ~ wn
"a" ~ w
[w,wn]
{"a":w}
{w:1}
{w:1}[w]
{w:1}|tojson
(w,)
wd
wd.id
wd|tojson
wd|tojson(indent=2)
wd|dictsort
wj|dictsort(by="value")
[w,{"a":wn}]|tojson
w|tojson
w is number
w is integer
w is float
w is string
w is boolean
w is mapping
w is sequence
w is iterable
w is callable
w is none
w is true
w is sameas w
w is sameas 1
w is eq(w)
w is in([1,w])
w is in([1,wn])
w == w
w == wn
w == wp
w == 12345678901234567890.0
wp == 18446744073709551616.0
wp == 18446744073709551616.0 * 2
wm == 9223372036854775808.0
wm != 9223372036854775808.0
wm > 9223372036854775807
wm < 9223372036854775807
wm > big
wm == big
wn < -big
w > 1
w < 1
w >= w
w <= w
w < wp
wp < w
wn < w
wn < wn
wn > -1e20
wn > -9e19
w > 1.2345678901234567e19
w < 1.2345678901234569e19
w > 1e300
w < 1e300
w > -1e300
wn < 0.5
w > 0.5
w == "12345678901234567890"
w == "12345678901234567890"|int
w == true
w > true
1 < w
1e300 < w
-1e300 < wn
big < wm
we > 1e308
we == 1e308
we < 1e308
we > 1.7976931348623157e308
w > "a"
"a" in w
w in wl
wl.index(9223372036854775808.0)
wl.count(18446744073709551616.0)
wl|sort
wl|sort(reverse=true)
wl|max
wl|min
wl|unique|list
wl|map("string")|join(",")
wl|join(",")
wl|select("gt",0)|list
wl|reject("integer")|list
wl|tojson
not w
w and 1
w or 1
1 if w else 2
w|int
w|int(5)
w|float
wn|float
we|float
w|round
wn|round
w|round(2)
w|round(0,"common")
w|default(1)
w|length
w|list
w|first
w|upper
w|replace("1","x")
w|trim
w|e
w|center(30)
"%s" % w
"%d" % w
"%d" % wn
"%i|%u" % (w,wn)
"%30d|%-30d|%030d|%+d|% d" % (w,w,wn,w,w)
"%r" % w
"%f" % w
"%.2f" % wn
"%d" % 1e21
"%d" % -1e19
"%d" % 1e300
"%x" % 1e21
"{}".format(w)
"{a}{}".format(w,a=wn)
"%s-%d"|format(w,w)
w[0]
w.a
w()
l[w]
l[w] is defined
"abc"[w]
d.get(w)
d.get(w,1)
range(w)
"a"*w
"12345678901234567890"|int
"-12345678901234567890"|int
"+12345678901234567890"|int
" 12_345_678_901_234_567_890\n"|int
"00000000000000000000000000000000012"|int
"-0000000000000000000000000000000012345678901234567890"|int
"0000000000000000000000000000000000"|int
"12345678901234567890x"|int
"12345678901234567890x"|int(3)
"1__2345678901234567890"|int
"12345678901234567890_"|int
"_12345678901234567890"|int
"12345678901234567890.7"|int
"1e20"|int
"9223372036854775808"|int
"-9223372036854775808"|int
"-9223372036854775809"|int
"12345678901234567890"|int is integer
"12345678901234567890"|float
1e21|int
-1e21|int
9223372036854775808.0|int
-9223372036854775808.0|int
1e300|int
h|int
"abc".center(9)
"abc".center(8)
"ab".center(7)
"ab".center(8)
"abc".center(2)
"abc".center(-5)
"".center(3)
"".center(0)
"abc".center(9,"*")
"abc".center(8,"é")
"aé😀".center(9,"*")
"abc".center(9,"")
"abc".center(9,"ab")
"abc".center(9,1)
"abc".center("9")
"abc".center()
"abc".center(4.5)
"abc".center(true)
"abc".ljust(6)~"|"
"abc".ljust(6,".")
"abc".ljust(3)
"abc".ljust(0)
"abc".rjust(6)
"abc".rjust(6,"é")
"abc".rjust(2,".")
"abc".ljust(6,"..")
"abc".rjust()
"42".zfill(5)
"-42".zfill(5)
"+42".zfill(5)
"-42".zfill(3)
"-42".zfill(2)
"-42".zfill(0)
"-42".zfill(-3)
"-".zfill(3)
"".zfill(3)
"--1".zfill(6)
"é".zfill(3)
"42".zfill("5")
("<"|safe).center(3)+"<"
("<"|safe).ljust(3)+"<"
("<"|safe).rjust(3)+"<"
("<"|safe).zfill(3)+"<"
("<a"|safe).swapcase()+"<"
"Hello World".swapcase()
"ß ﬁ É é Ñ".swapcase()
"ΑΣ Σ ΑΣ.Α".swapcase()
"ας σ".swapcase()
"İ ı ŉ".swapcase()
"ǅ ǆ Ǆ".swapcase()
"Ⓐⓐ Ⅷⅷ".swapcase()
"ʰªº".swapcase()
"123 _-".swapcase()
u.swapcase()
"".swapcase()
u.center(30,"*")
"abc"|center(9)
"abc"|center(width=8)
"abc"|center|length
12|center(7)
("<"|safe)|center(5)+"<"
none|center(9)
"abc"|center("x")
"abcabc".find("b",2)
"abcabc".find("b",1)
"abcabc".find("b",2,4)
"abcabc".find("b",2,5)
"abcabc".find("b",-2)
"abcabc".find("b",-99)
"abcabc".find("b",0,-5)
"abcabc".find("b",0,-4)
"abcabc".find("b",99)
"abcabc".find("b",none,3)
"abcabc".find("b",none,none)
"abcabc".find("b",2,none)
"abcabc".find("",3)
"abcabc".find("",6)
"abcabc".find("",7)
"abcabc".find("",3,2)
"abcabc".find("",-1)
"abcabc".find("b","1")
"abcabc".find("b",1.0)
"abcabc".find("b",true)
"abcabc".find("bc",1,2)
"abcabc".rfind("b",0,4)
"abcabc".rfind("b",2)
"abcabc".rfind("b",5)
"abcabc".rfind("",1,3)
"abcabc".rfind("",7)
"abcabc".rfind("b",-99,99)
"éàüéàü".find("à",2)
"éàüéàü".find("à",2,4)
"éàüéàü".rfind("à",0,4)
"éàüéàü".rfind("é",-3)
"éàüéàü".count("à",2)
"éàüéàü".count("",2,4)
"abcabc".index("b",2)
"abcabc".index("b",5)
"abcabc".rindex("b",0,4)
"abcabc".rindex("b",0,1)
"abcabc".count("b",2)
"abcabc".count("b",0,2)
"abcabc".count("b",0,1)
"abcabc".count("b",-2)
"abcabc".count("b",4,2)
"abcabc".count("",3)
"abcabc".count("",6)
"abcabc".count("",7)
"abcabc".count("",4,2)
"abcabc".count("",-2)
"aaaa".count("aa",1)
"aaaa".count("aa",1,3)
"abcabc".startswith("b",1)
"abcabc".startswith("b",1,1)
"abcabc".startswith("b",1,2)
"abcabc".startswith("bc",1,2)
"abcabc".startswith("b",-2)
"abcabc".startswith(("x","b"),1)
"abcabc".startswith(("x","a"),1)
"abcabc".startswith("",6)
"abcabc".startswith("",7)
"abcabc".startswith("",3,2)
"abcabc".startswith((),1)
"abcabc".startswith("b",none)
"abcabc".startswith("b","x")
"abcabc".endswith("b",0,2)
"abcabc".endswith("b",2,2)
"abcabc".endswith("ab",1,2)
"abcabc".endswith("c",-1)
"abcabc".endswith("bc",-1)
"abcabc".endswith(("x","b"),0,-1)
"abcabc".endswith("",6)
"abcabc".endswith("",7)
"éàü".endswith("à",0,2)
"éàü".startswith("à",1)
""".strip().split("\n")

STATEMENTS = r"""
{% if x %}a{% endif %}b
{% if not x %}a{% elif l %}b{% else %}c{% endif %}
{% if y %}a{% else %}c{% endif %}
{% if x: %}a{% endif %}
a  {%- if x -%}  b  {%- endif -%}  c
a  {%+ if x +%}  b  {%+ endif +%}  c
  {%- endif %}
{{- x -}}   
 b
 {{ x }} 
  {# comment #}
  a {# c #} b
{#- c -#}  a
  {#+ c +#}  a
a {#- c -#} b
{% raw %}{{ x }}{% if %}{% endraw %}
a {%- raw -%}  {{ x }}  {%- endraw -%} b
{% for i in l %}{{ i }}{% endfor %}
{% for i in l %}{{ loop.index }}{{ loop.index0 }}{{ loop.revindex }}{{ loop.revindex0 }}{{ loop.first }}{{ loop.last }}{{ loop.length }}{{ loop.depth }}{{ loop.depth0 }};{% endfor %}
{% for i in l %}{{ loop.previtem }},{{ loop.nextitem }};{% endfor %}
{% for i in l %}{{ loop.previtem is defined }},{{ loop.nextitem is defined }};{% endfor %}
{% for i in l %}{{ loop.cycle('a','b') }}{% endfor %}
{% for i in [1,1,2,2,1] %}{{ loop.changed(i) }}{% endfor %}
{% for i in l if i > 1 %}{{ i }}{{ loop.length }}{{ loop.index }}{{ loop.last }}{% endfor %}
{% for i in l if i > 5 %}{{ i }}{% else %}none{% endfor %}
{% for i in [] %}{{ i }}{% else %}empty{{ i }}{{ loop }}{% endfor %}
{% for k, v in dd.items() %}{{ k }}={{ v }};{% endfor %}
{% for k, v in dd|items %}{{ k }}={{ v }};{% endfor %}
{% for k in dd %}{{ k }}{% endfor %}
{% for (a, b) in [(1,2),(3,4)] %}{{ a }}{{ b }}{% endfor %}
{% for a, (b, c) in [(1,(2,3))] %}{{ a }}{{ b }}{{ c }}{% endfor %}
{% for a, b in [(1,2,3)] %}{{ a }}{% endfor %}
{% for a, b in ['xy'] %}{{ a }}{{ b }}{% endfor %}
{% for a, b in [1] %}{{ a }}{% endfor %}
{% for c in 'abc' %}{{ c }}.{% endfor %}
{% for i in undefinedthing %}{{ i }}{% else %}E{% endfor %}
{% for i in none %}{{ i }}{% endfor %}
{% for i in 5 %}{{ i }}{% endfor %}
{% for i in range(3) %}{% for j in range(i) %}{{ loop.index }}/{{ i }}{% endfor %}|{{ loop.index }}{% endfor %}
{% for i in l %}{% set y = i %}{{ y }}{% endfor %}{{ y }}
{% set y = 0 %}{% for i in l %}{% set y = y + i %}{{ y }},{% endfor %}{{ y }}
{% set y = 0 %}{% for i in l %}{{ y }}{% set y = i %}{{ y }},{% endfor %}{{ y }}
{% for i in l %}{{ y }}{% if loop.first %}{% set y = 1 %}{% endif %}{{ y }},{% endfor %}
{% for i in l %}{{ x }}{% set x = i %}{{ x }},{% endfor %}{{ x }}
{% for i in l %}{% if i == 1 %}{% set x = i %}{% endif %}{{ x }},{% endfor %}{{ x }}
{% set ns = namespace(a=0) %}{% for i in l %}{% set ns.a = ns.a + i %}{% endfor %}{{ ns.a }}
{% set ns = namespace() %}{% set ns.b = 1 %}{{ ns.b }}{{ ns.c }}{{ ns }}
{% set ns = dd %}{% set ns.a = 2 %}
{% set nsx.a = 2 %}
{% set a, b = 1, 2 %}{{ a }}{{ b }}
{% set a, b = [1, 2, 3] %}{{ a }}
{% set (a, b) = (1, 2) %}{{ a }}{{ b }}
{% set a = 1, 2 %}{{ a }}
{% set a = b = 1 %}
{% set a %}x{{ x }}y{% endset %}{{ a }}|{{ a|length }}
{% set a | upper | replace('X','-') %}x{{ x }}y{% endset %}{{ a }}
{% set a %}{% set b = 1 %}{{ b }}{% endset %}{{ a }}{{ b }}
{% macro f(a, b=2, c='z') %}[{{ a }}{{ b }}{{ c }}]{% endmacro %}{{ f(1) }}{{ f(1, 3) }}{{ f(b=5, a=1) }}{{ f() }}
{% macro f(a) %}{{ a }}{% endmacro %}{{ f(1, 2) }}
{% macro f(a) %}{{ a }}{% endmacro %}{{ f(1, b=2) }}
{% macro f(a) %}{{ a }}{% endmacro %}{{ f(1, a=2) }}
{% macro f() %}{{ varargs }}{{ kwargs }}{% endmacro %}{{ f(1, 2, q=3) }}
{% macro f(a) %}{{ varargs }}{{ kwargs }}{% endmacro %}{{ f(1, 2, q=3) }}
{% macro f(a, b=a) %}{{ b }}{% endmacro %}{{ f(1) }}
{% macro f(a, b=x) %}{{ b }}{% endmacro %}{% set x = 'N' %}{{ f(1) }}
{% macro f() %}{{ z }}{% endmacro %}{% set z = 5 %}{{ f() }}
{% macro f() %}{{ x }}{% set x = 1 %}{{ x }}{% endmacro %}{{ f() }}{{ x }}
{% set z = 1 %}{% macro f() %}{{ z }}{% endmacro %}{% set z = 2 %}{{ f() }}
{% macro f(n) %}{{ n }}{% if n > 0 %}{{ f(n - 1) }}{% endif %}{% endmacro %}{{ f(5) }}
{% macro f(n) %}{{ g(n) }}{% endmacro %}{% macro g(n) %}<{{ n }}>{% endmacro %}{{ f(1) }}
{% macro f() %}a{% endmacro %}{{ f() is string }}{{ f()|upper }}{{ f() + 'b' }}{{ f }}
{% macro f() %} {{- caller() -}} {% endmacro %}{% call f() %}body{% endcall %}
{% macro f() %}[{{ caller('v') }}]{% endmacro %}{% call(a) f() %}{{ a }}{{ x }}{% endcall %}
{% macro f(a) %}[{{ a }}{{ caller() }}]{% endmacro %}{% call f(1) %}b{% set q = 1 %}{% endcall %}{{ q }}
{% macro f() %}a{% endmacro %}{% call f() %}b{% endcall %}
{% macro f() %}{% if caller %}c{{ caller() }}{% else %}n{% endif %}{% endmacro %}{{ f() }}{% call f() %}b{% endcall %}
{% macro f() %}{{ caller is defined }}{% endmacro %}{{ f() }}
{% macro outer() %}{% call inner() %}{{ caller() }}{% endcall %}{% endmacro %}{% macro inner() %}<{{ caller() }}>{% endmacro %}{% call outer() %}z{% endcall %}
{% for i in l %}{% macro f() %}{{ i }}{% endmacro %}{{ f() }}{% endfor %}{{ f }}
{% for i in l %}{% if i == 1 %}{% break %}{% endif %}{{ i }}{% endfor %}
{% for i in l %}{% if i == 1 %}{% continue %}{% endif %}{{ i }}{% endfor %}
{% for i in l %}{% for j in l %}{% if j == 1 %}{% break %}{% endif %}{{ j }}{% endfor %}|{% endfor %}
{% for i in l %}{% break %}{% else %}E{% endfor %}
{% break %}
{% for i in l %}{% set a %}q{% if i == 1 %}{% continue %}{% endif %}{{ i }}{% endset %}{{ a }}{% endfor %}
{% filter upper %}a{{ x }}b{% endfilter %}
{% filter replace('a', 'b')|upper %}aXa{% endfilter %}
{% filter trim %}  a{% set q = 1 %} {% endfilter %}{{ q }}
{% with a = 1, b = x %}{{ a }}{{ b }}{% endwith %}{{ a }}
{% with %}{% set q = 1 %}{{ q }}{% endwith %}{{ q }}
{% with a = 1 %}{% with a = 2, b = a %}{{ a }}{{ b }}{% endwith %}{% endwith %}
{% generation %}a{{ x }}{% set q = 1 %}{% endgeneration %}{{ q }}
{% for i in l %}{% generation %}{{ i }}{{ loop.index }}{% endgeneration %}{% endfor %}
{% if true %}{% set q = 1 %}{% endif %}{{ q }}
{% if false %}{% set x = 1 %}{% endif %}{{ x }}
{{ 'a' if x else 'b' }}{{ 'a' if y }}{{ ('a' if y) is defined }}
{{ x, l }}
{{ x }}{{ y }}{{ none }}{{ true }}{{ 1.0 }}
{{ r|selectattr('r','equalto','u')|map(attribute='c')|join(',') }}
{{ (r|selectattr('r','equalto','u')|list)[0].c }}
{% set it = l|map('string') %}{% for i in it %}{{ i }}{% endfor %}{% for i in it %}{{ i }}{% else %}gone{% endfor %}
{% set it = l|map('string') %}{{ it|first }}{{ it|first }}{{ it|list }}
{% set it = l|select %}{{ 3 in it }}{{ 1 in it }}
{% set it = dd|items %}{{ it|list }}{{ it|list }}
{% set it = l|reverse %}{{ it|list }}{{ it|list }}
{{ l|map('string')|length }}
{% set v = dd.items() %}{{ v|length }}{{ v|list }}{{ v|list }}{{ v[0] }}
{{ dd.items()|first }}{{ dd.keys()|last }}
{% for i in dd.values() %}{{ i }}{{ loop.last }}{% endfor %}
{% for i in l|map('string') %}{{ i }}{{ loop.length }}{{ loop.last }}{% endfor %}
{% include 'a' %}
{% extends 'a' %}
{% import 'a' as b %}
{% do l.append(1) %}
{% foo %}
{% if %}{% endif %}
{% for %}{% endfor %}
{% for a in %}{% endfor %}
{% if x %}
{% endif %}
{% for i in l %}{% endif %}
{{ }}
{{ x
{# c
{% raw %} a
{{ 'a }}
{{ "a\" }}
{{ x.1a }}
{{ x y }}
{{ x..y }}
{{ (x }}
{{ x) }}
{{ [x) }}
{{ {x:1 }}
{{ x | }}
{{ x is }}
{{ x is not }}
{{ x | nofilter }}
{{ x is notest }}
{{ a = 1 }}
{{ x if }}
{{ x if x else }}
{{ not }}
{{ 1 + }}
{{ * 1 }}
{{ x[ }}
{{ x. }}
{{ .x }}
{{ $ }}
{{ x; }}
{{ 1__0 }}
{{ 0x }}
{{ 08 }}
{{ 1.e5 }}
{{ 1e }}
{{ f(a=1, 2) }}
{{ f(*l) }}
{{ f(**dd) }}
{% set 1 = x %}
{% set x.y.z = 1 %}
{% set x[0] = 1 %}
{% set true = 1 %}
{% macro f(a %}{% endmacro %}
{% macro f(a, a) %}{% endmacro %}
{% macro f(1) %}{% endmacro %}
{% macro f %}{% endmacro %}
{% call x %}{% endcall %}
{% call 1 %}{% endcall %}
{% else %}
{% if x %}{% else %}{% else %}{% endif %}
{% if x %}{% elif %}{% endif %}
{% if x %}{% else %}{% elif y %}{% endif %}
{%if x%}a{%endif%}
{%-if x-%} a {%-endif-%}
{{x}}{{-x-}}{{x}}
{{ '{{' }}{{ '}}' }}{{ '%}' }}
{{ {'a': {'b': 1}} }}{{ {'a':{'b':1}}['a']['b'] }}
{{ "a" "b" 'c' }}
{% if x is defined and x is not none and x is string %}y{% endif %}
{% if x is defined and not x is none %}y{% endif %}
{{ x is string is true }}
{{ l is sequence and x is string }}{{ not x is none }}
{{ x in ['X'] and 1 }}{{ x not in l }}{{ not x in l }}
{{ 1 is divisibleby 2 or 3 }}{{ 4 is divisibleby 2 and x }}
{{ x == 'X' and 'a' or 'b' }}
{{ l|length > 2 }}{{ l|length - 1 }}{{ -l|length }}{{ l|sum / 2 }}
{{ l[0] + l[-1] }}{{ l[1:][0] }}{{ (l|sort)[0] }}{{ l|sort|first }}
{{ 'a' ~ 1 + 2 ~ 'b' }}{{ 1 ~ 2 * 3 }}{{ 'a' + 'b' ~ 'c' }}
{{ messages }}{{ messages|length }}{{ add_generation_prompt }}
{{ namespace(a=1) }}
{% set x = x %}{{ x }}
{% set x = x ~ 'a' %}{{ x }}
{% for x in l %}{{ x }}{% endfor %}{{ x }}
{% for i in l %}{% for i in [] %}{% endfor %}{{ i }}{% endfor %}
{% for i in l %}{% set ns = namespace(q=i) %}{{ ns.q }}{% endfor %}{{ ns }}
{% set f = dd.get %}{{ f('a') }}
{% set f = x.lower %}{{ f() }}
{% set g = {'h': 1} %}{{ g.h }}{{ g['h'] }}{{ g.get('h') }}{{ g.items() }}
{% set o = namespace(fn=range) %}{{ o.fn(3)|list }}
{{ dd.a }}
{{ (1,2)[0] }}{{ 'abc'[1] }}{{ {'a':1}.a }}{{ [1,2].0 }}{{ 'x'.upper() }}{{ 1.5|string }}{{ [1][0]|string }}
{{ messages[0] }}{{ messages[0].role }}
{{ x.y }}{{ x.y.z }}
{{ y.z }}
{{ y['z'] }}
{{ y() }}
{{ x() }}
{{ dd.zz.yy }}
{{ dd['zz'] }}{{ dd['zz'] is defined }}
{{ -y }}
{{ y ~ 1 }}{{ y|default(3) }}{{ y == y }}{{ y is none }}{{ not y }}
{{ raise_exception('hey') }}
{% if 0 %}{{ raise_exception('hey') }}{% endif %}ok
{{ 'a' if 0 else raise_exception('hey') }}
{% for i in l %}
  {% for i in l %}
  {{ i }}
    {% if i %}
      z
    {% endif %}
  {% endfor %}  
  {% set a = 1 %}  
	{% set a = 1 %}
x{% set a = 1 %}
y
{% set a = 1 -%}
   y
{% macro f() %}
 a
{% endmacro %}
{{ f() }}
{{ x }}
""".strip("\n").split("\n")

WHITESPACE = [
    "a\n  {%+ if x %}\nb\n  {%- endif %}\n\nc", "  {% if x %}\n    a\n  {% endif %}\n  b\n",
    "{% raw %}\na\n{% endraw %}\nb\n", "{{ x }}\n", "{{ x }}\n\n", "{{ x }}\r\n", "a\r\nb\rc\r\n",
    "{% for i in l %}\n{{ i }}\n{% endfor %}\n", "  {% for i in l %}\n  {{ i }}\n  {% endfor %}\nb",
    "  {#+ c +#}\n a", " {# c #}\n a", "x {# c #}\n a", "{{ x -}}\n\u00a0\u2003 b",
    "\u3000{%- if x %}a{% endif %}", "{% set a = 1 %}\n\n{% set b = 2 %}\nc",
    "{% macro f() %}\n a\n{% endmacro %}\n{{ f() }}b", "{% if x\n   and l %}a{% endif %}",
    "{{\n  x\n}}", "{{ \"multi\nline\" }}", "{% raw -%}  {{ x }}  {%- endraw +%}\nb",
    "a\n\t{% if x -%}\n\n b\n\n {%- endif %}\nc", "{{ '\n' }}{% if x %}\n{% endif %}\n ", "",
]

TOOLS = [{"type": "function", "function": {
    "name": "get", "description": "Né \"quoted\"",
    "parameters": {"type": "object", "properties": {"items": {"type": "array"},
                                                    "n": {"default": 1e-7}}}}}]
CALL = {"type": "function", "function": {"name": "get",
                                         "arguments": {"a": "x", "n": 1.0, "l": [1, None, True]}}}
SYSTEM = {"role": "system", "content": "Be terse."}
USER = {"role": "user", "content": "Hi <|im_end|>"}
ANSWER = {"role": "assistant", "content": "<think>\nwhy\n</think>\n\nBecause."}
CONVERSATIONS = [
    [USER], [SYSTEM, USER], [SYSTEM, USER, ANSWER, USER], [USER, ANSWER],
    [USER, USER, ANSWER, ANSWER],
    [USER, {"role": "assistant", "content": "Yes", "reasoning_content": " a\nb "}, USER],
    [USER, {"role": "assistant", "content": "Yes", "reasoning_content": " a\nb "}],
    [USER, {"role": "assistant", "content": "", "tool_calls": [CALL]},
     {"role": "tool", "content": "42"}],
    [USER, {"role": "assistant", "content": "Look:", "tool_calls": [CALL, CALL["function"]]},
     {"role": "tool", "content": "42"}, {"role": "tool", "content": "43"}, USER],
    [{"role": "user", "content": [{"type": "text", "text": "a"}, {"type": "text", "text": "b"}]}],
    [USER, SYSTEM, USER], [SYSTEM], [], [{"role": "developer", "content": "d"}, USER],
    [{"role": "user", "content": "<tool_response>x</tool_response>"}],
]
KWARGS = [{}, {"add_generation_prompt": True},
          {"add_generation_prompt": True, "enable_thinking": False},
          {"reasoning_effort": "low"}, {"reasoning_effort": "high"}, {"preserve_thinking": False}]


def write(name, lines):
    with open(DATA / name, "w", encoding="utf-8") as out:
        for line in lines:
            out.write(json.dumps(line, ensure_ascii=False) + "\n")


def main():
    cases = [{"variables": VARIABLES}]
    for source in ["{{ %s }}" % e for e in EXPRESSIONS] + STATEMENTS + WHITESPACE:
        cases.append({"template": source, **rendered(source, {**VARIABLES, "messages": [],
                                                              "add_generation_prompt": False})})
    write("expressions.jsonl", cases)
    cases = []
    for name in ["qwen3-style", "qwen3.8-style"]:
        source = (DATA / (name + ".jinja")).read_text(encoding="utf-8")
        for messages in CONVERSATIONS:
            for tools in [None, TOOLS]:
                for kwargs in KWARGS:
                    variables = {"add_generation_prompt": False, **kwargs}
                    given = {**variables, "messages": messages}
                    if tools:
                        given["tools"] = tools
                    cases.append({"template": name, "messages": messages, "tools": tools,
                                  "variables": variables, **rendered(source, given)})
    write("variants.jsonl", cases)


main()
