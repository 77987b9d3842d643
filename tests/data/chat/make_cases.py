#!/usr/bin/env python3
"""Writes cases.json: what jinja2 3.1, set up as Hugging Face transformers does for chat templates, makes of the
templates below. Test tooling only; run it in this directory after adding a template."""
import itertools
import json
import jinja2
import jinja2.ext
from jinja2.sandbox import ImmutableSandboxedEnvironment


class Generation(jinja2.ext.Extension):
    tags = {"generation"}

    def parse(self, parser):
        line = next(parser.stream).lineno
        body = parser.parse_statements(["name:endgeneration"], drop_needle=True)
        return jinja2.nodes.CallBlock(self.call_method("_keep"), [], [], body).set_lineno(line)

    @jinja2.pass_eval_context
    def _keep(self, context, caller):
        return caller()


def raise_exception(message):
    raise jinja2.exceptions.TemplateError(message)


def tojson(x, ensure_ascii=False, indent=None, separators=None, sort_keys=False):
    return json.dumps(x, ensure_ascii=ensure_ascii, indent=indent, separators=separators, sort_keys=sort_keys)


env = ImmutableSandboxedEnvironment(trim_blocks=True, lstrip_blocks=True, extensions=[Generation, jinja2.ext.loopcontrols])
env.filters["tojson"] = tojson
env.globals["raise_exception"] = raise_exception

DATA = {
    "messages": [
        {"role": "system", "content": "Be brief."},
        {"role": "user", "content": "Héllo wörld \U0001F600 <b>"},
        {"role": "assistant", "content": None, "tool_calls": [{"function": {"name": "f", "arguments": {"a": 1, "b": [1.5, True, None]}}}]},
        {"role": "tool", "content": [{"type": "text", "text": "x\ny"}, {"type": "image"}]},
    ],
    "tools": [{"type": "function", "function": {"name": "get", "description": "d\"q'", "parameters": {"type": "object", "properties": {"x": {"type": "string"}}, "required": ["x"]}}}],
    "add_generation_prompt": True,
    "bos_token": "<s>",
    "eos_token": "</s>",
    "variables": {
        "n": 7, "f": 2.5, "t": True, "no": False, "nil": None, "s": "Hello World", "e": "", "u": "ünïcødé ß ǆ \U0001F468",
        "l": [3, 1, 2], "ls": ["b", "A", "c", "a"], "d": {"b": 1, "a": 2, "C": 3, "items": 5}, "nest": {"x": {"y": [10, 20]}},
        "recs": [{"n": "x", "g": 1, "v": {"w": 5}}, {"n": "Y", "g": 2, "v": {"w": 3}}, {"n": "z", "g": 1, "v": {"w": 4}}, {"n": "q", "g": 2}],
        "lines": "a\n  b\n\nc\r\nd", "ws": "  pad \t\n", "q": "it's \"q\" \\ \n\t\x01\x7f", "big": 9007199254740993, "neg": -7,
        "fl": [0.1, 1e16, 1e-5, 123456789.125, 1e22, -0.0, 3.0, 1e15, 5e-324, 1.7976931348623157e308, 0.0001, 100.0],
    },
}

T = []


def add(*templates):
    T.extend(templates)


def exprs(text):
    for line in text.strip().split("\n"):
        line = line.strip()
        if line:
            T.append("{{ " + line + " }}")


# ---- expressions --------------------------------------------------------------------------------------
exprs(r"""
1 + 2 * 3
(1 + 2) * 3
7 // 2
-7 // 2
7 // -2
7 % 3
-7 % 3
7 % -3
7 / 2
6 / 2
2 ** 10
2 ** -1
-2 ** 2
2 ** 3 ** 2
2 ** 0.5
7.5 // 2
-7.5 // 2
7.5 % 2
-7.5 % 2
1e3
1.5e-7
1_000
0x1F
0b101
0o17
1.0
1e100
12345678901234567
1 / 3
10 / 4
0.1 + 0.2
1 - 1.0
1 + true
true + true
-true
+5
-n
- n + 3
n - -1
1 / 0
1 // 0
1 % 0
1.0 / 0
0 ** -1
'a' + 'b'
'a' * 3
3 * 'ab'
'a' * -1
[1] * 3
[1] + [2]
(1,) + (2, 3)
[1] + (2,)
'a' + 1
1 + 'a'
none + 1
'a' ~ 1 ~ none ~ true ~ 1.0 ~ [1, 'x'] ~ undefinedvar
1 ~ 2 + 3
1 + 2 ~ 3
1 == 1.0
1 == true
'1' == 1
none == none
none == false
[1, 2] == [1, 2.0]
{'a': 1} == {'a': true}
(1, 2) == [1, 2]
1 < 2 < 3
1 < 3 < 2
1 < 2 == 2
3 > 2 >= 2 != 1
'a' < 'b'
'a' < 'B'
'é' > 'z'
[1, 2] < [1, 3]
(1,) < (1, 0)
1 < 'a'
none < 1
undefinedvar < 1
undefinedvar == undefinedvar
undefinedvar == none
1 in [1, 2]
3 not in [1, 2]
'a' in 'abc'
'' in 'abc'
'x' in d
'a' in d
1 in 'abc'
1 in 5
1 in undefinedvar
undefinedvar in 'abc'
undefinedvar in [1]
not 1 in [1]
not true
not not 1
not 1 == 2
1 and 2
0 and 2
0 or 'x'
'' or none or []
1 or 1/0
not (1 and 0) or 5
1 if true else 2
1 if false else 2
1 if false
'a' if 0 else 'b' if 0 else 'c'
(1 if true else 2) + 5
[1, 2, 3]
[]
[1,]
()
(1,)
(1, 2)
(1)
1, 2
{}
{'a': 1, 'b': [1, {'c': none}]}
{1: 'x', 1.0: 'y', true: 'z'}
{'a': 1,}
{(1, 2): 3}
{[1]: 2}
'a' 'b' "c"
'\n\t\\\'\"\x41\u00e9\U0001F600\101\q'
"it's"
'say "hi"'
['it\'s', "q\"", 'both\'"', '\n', 'é', '\x00', '\u200b', '\xa0', '\U0001F600']
True
None
none
False
true
""")
exprs(r"""
l[0]
l[-1]
l[5]
l['x']
l[true]
l[1:]
l[:-1]
l[::-1]
l[::2]
l[-2:]
l[5:]
l[1:2:1]
l[2:0:-1]
l[::0]
l['a':]
s[0]
s[-1]
s[100]
s[1:4]
s[::-1]
u[2:5]
u[::-1]
u[-1]
u[0:3] ~ u[1]
u|length
u|list
(1,2,3)[1:]
range(10)[2:5]
range(10)[::3]|list
range(5)[-1]
nil[1:]
d[1:]
d.a
d['a']
d.items
d['items']
d.nope
d.nope.x
d['nope']['x']
d.nope is defined
nest.x.y[1]
nest['x'].y.0
nest.x.y.5
n.foo
n['foo']
n[0]
none.foo
none.foo.bar
undefinedvar
undefinedvar.foo
undefinedvar['foo']
undefinedvar[0]
undefinedvar()
undefinedvar + 1
undefinedvar ~ 'x'
-undefinedvar
s.upper
messages[0].role
messages[1]['content'][7:9]
messages[-1].content[0].text
messages[2].tool_calls[0].function.arguments.b
messages[0]
messages
d.__class__
s.__len__
l.append(4)
l.append
d.update({'x': 1})
d.pop('a')
l.sort()
d.get('a')
d.get('zz')
d.get('zz', 5)
d.get('zz', default=5)
d.keys()
d.values()
nest.items()
d.keys()|list
d.values()|list
d.copy()
nest.items()|list
d.keys()|length
d.keys()[0]
l.index(1)
l.index(99)
l.count(3)
l.copy()
(1, 2, 1).count(1)
fl
big
big + 1
big * 1.0
9223372036854775807
-9223372036854775807 - 1
1.5 + big
neg // 2 ~ ' ' ~ neg % 3
1e16 ~ ' ' ~ 123456789012345678.0
1e5
0.00001
1.0e10
'%.3f' % 1.0
'%s and %s' % ('a', 1)
'%s' % 'x'
'%d' % 3.7
'%5d|%-5d|%05d|%+d' % (1, 2, 3, 4)
'%x %X %o %#x' % (255, 255, 8, 255)
'%e %g %G' % (12345.678, 0.00001, 1e20)
'%5s|%-5s|%.2s' % ('ab', 'ab', 'abcdef')
'%r' % 'x'
'%(a)s-%(b)d' % {'a': 'x', 'b': 2}
'%%'  % ()
'100%%' % ()
'%s' % [1, 2]
'%s' % ()
'%s %s' % 'x'
'%d' % 'x'
'%s' % none
'x' % 5
'%c%c' % (65, 'B')
'%*d' % (5, 3)
'%.10g' % 0.1
'%s' % {'a': 1}
'{} {}'.format(1, 'x')
'{0}{1}{0}'.format('a', 'b')
'{a} {b:>5}|{c:<5}|{d:^5}|'.format(a=1, b='x', c='y', d='z')
'{:.2f} {:5d} {:05d} {:+d} {:,}'.format(3.14159, 42, 42, 42, 1234567)
'{:x} {:#x} {:b} {:o} {:e} {:%}'.format(255, 255, 5, 8, 12345.678, 0.25)
'{0[a]} {0[b]}'.format({'a': 1, 'b': 2})
'{!r}'.format('x')
'{{}}'.format()
'{}'.format()
'{:*^10}'.format('mid')
'{:>10.3f}|'.format(2.5)
'{:s}'.format('abc')
'{:d}'.format('abc')
'{} {} {} {}'.format(none, true, 1.0, [1])
'{'.format()
""")
# ---- methods ------------------------------------------------------------------------------------------
exprs(r"""
s.upper() ~ s.lower() ~ s.title() ~ s.capitalize() ~ s.swapcase()
u.upper() ~ u.lower() ~ u.title() ~ u.capitalize()
'hELLO wORLD'.title() ~ "they're bill's".title() ~ 'x1y'.title()
'ΑΣ ΑΣΑ'.lower()
ws.strip() ~ '|' ~ ws.lstrip() ~ '|' ~ ws.rstrip() ~ '|'
'xxaxx'.strip('x') ~ 'abcba'.lstrip('ab') ~ 'abcba'.rstrip('ab')
'ééaé'.strip('é')
'abc'.strip(none)
'abc'.strip(1)
' a  b c '.split()
' a  b c '.split(' ')
'a,b,c'.split(',')
'a,b,c'.split(',', 1)
'a,b,c'.rsplit(',', 1)
'a b  c'.rsplit(none, 1)
'a b  c '.split(none, 1)
' a b  c'.split(maxsplit=1)
'a,b,c'.split(sep=',', maxsplit=1)
''.split()
''.split(',')
'abc'.split('')
'a</think>b</think>c'.split('</think>')[-1]
'a</think>b'.split('</think>')[0].rstrip('\n').split('<think>')[-1].lstrip('\n')
lines.splitlines()
lines.splitlines(true)
'a\n'.splitlines()
'a\n\nb'.splitlines()
'abc'.startswith('ab') ~ 'abc'.startswith('bc') ~ 'abc'.startswith(('x', 'a')) ~ 'abc'.startswith('b', 1) ~ 'abc'.startswith('')
'abc'.endswith('bc') ~ 'abc'.endswith('ab') ~ 'abc'.endswith(('x', 'c')) ~ 'abc'.endswith('b', 0, 2)
'abc'.startswith(1)
'aXbXc'.replace('X', '-') ~ 'aXbXc'.replace('X', '-', 1) ~ 'abc'.replace('', '-') ~ 'aaa'.replace('aa', 'b') ~ 'é'.replace('', '.')
'abcabc'.find('c') ~ 'abcabc'.rfind('c') ~ 'abc'.find('x') ~ 'abcabc'.find('c', 3) ~ 'éàc'.find('c') ~ 'abc'.find('') ~ 'abc'.find('a', 1)
'abcabc'.index('c') ~ 'abcabc'.rindex('a')
'abc'.index('x')
'banana'.count('a') ~ 'banana'.count('an') ~ 'banana'.count('') ~ 'banana'.count('a', 2) ~ 'aaaa'.count('aa')
'-'.join(['a', 'b']) ~ ''.join('abc') ~ ','.join([])
'-'.join([1, 2])
'a-b-c'.partition('-')
'a-b-c'.rpartition('-')
'abc'.partition('-')
'abc'.rpartition('-')
'abc'.removeprefix('a') ~ 'abc'.removesuffix('c') ~ 'abc'.removeprefix('x')
'ab'.ljust(5) ~ '|' ~ 'ab'.rjust(5, '*') ~ '|' ~ 'ab'.center(5, '-') ~ '|' ~ 'abc'.center(6, '-') ~ '|' ~ 'abc'.center(8)
'42'.zfill(5) ~ '-42'.zfill(5) ~ '+1'.zfill(4)
'a\tb\tc'.expandtabs(4)
'abc'.isalpha() ~ 'ab1'.isalpha() ~ '123'.isdigit() ~ '12a'.isdigit() ~ ''.isdigit() ~ 'a1'.isalnum() ~ ' \t'.isspace() ~ 'é'.isascii() ~ 'a_1'.isidentifier()
'abc'.islower() ~ 'aBc'.islower() ~ 'ABC'.isupper() ~ '1'.isupper() ~ 'Hello World'.istitle() ~ 'Hello world'.istitle()
'²'.isdigit() ~ '½'.isnumeric() ~ '٣'.isdecimal()
s.upper(1)
s.nomethod()
'abc'.encode
'x'.casefold()
'a.b'.split('.') | first
""")
# ---- filters ------------------------------------------------------------------------------------------
exprs(r"""
ws|trim ~ '|'
'xxaxx'|trim('x')
5|trim
none|trim
undefinedvar|trim
s|length ~ l|length ~ d|length ~ e|count ~ range(5)|length
n|length
none|length
undefinedvar|length
l|join(', ') ~ ls|join ~ recs|join(',', attribute='n') ~ 'abc'|join('-') ~ [1, none, true]|join(' ') ~ []|join('x')
d|join(',')
undefinedvar|join(',')
5|join
undefinedvar|default('x') ~ none|default('x') ~ ''|default('x') ~ ''|default('x', true) ~ none|d('y', boolean=true) ~ 0|d(5)
undefinedvar|default
d.zz|default('q')
undefinedvar.x|default('q')
tools|tojson
tools|tojson(indent=4)
tools|tojson(indent=2)
tools[0]|tojson(indent=None)
messages[2]|tojson
messages[1].content|tojson ~ messages[1].content|tojson(ensure_ascii=true)
q|tojson ~ q
q|tojson(ensure_ascii=true)
[1, 1.5, true, none, 'x', [], {}]|tojson
[]|tojson(indent=2) ~ {}|tojson(indent=2) ~ [[]]|tojson(indent=2)
{'b': 1, 'a': {'d': 1, 'c': 2}}|tojson(sort_keys=true)
{'b': 1, 'a': 2}|tojson(separators=(',', ':'))
{'b': 1, 'a': 2}|tojson(indent=1, separators=(',', ':'))
{1: 2, true: 3, none: 4, 1.5: 5}|tojson
{(1, 2): 3}|tojson
fl|tojson
(1, 2)|tojson
undefinedvar|tojson
l|map('string')|tojson
range(3)|tojson
'x'|tojson(indent='\t')
[1, [2]]|tojson(indent='--')
l|first ~ l|last ~ s|first ~ s|last
[]|first
[]|last
d|first ~ d|last
undefinedvar|first
l|map('string')|first
l|map('string')|last
5|first
'abc'|list
d|list
5|list
undefinedvar|list
l|map('string')|list
ls|map('upper')|list ~ ls|map('upper')|join(',')
recs|map(attribute='n')|list
recs|map(attribute='v.w')|list
recs|map(attribute='v.w', default=0)|list
recs|map(attribute='zz', default='-')|join
recs|map(attribute='v')|list
l|map
l|map('nofilter')|list
ls|map('replace', 'a', 'X')|list
[1.234, 5.678]|map('round', 1)|list
none|map('upper')|list
[[1, 2], [3]]|map('length')|sum
l|select('odd')|list ~ l|reject('odd')|list ~ [0, 1, '', 'a', none]|select|list ~ [0, 1]|reject|list
l|select('>', 1)|list ~ l|select('in', [1, 3])|list ~ l|select('divisibleby', 2)|list
recs|selectattr('v')|map(attribute='n')|list
recs|selectattr('g', 'equalto', 1)|map(attribute='n')|list ~ recs|rejectattr('g', '==', 1)|map(attribute='n')|list
recs|selectattr('v', 'defined')|list|length ~ recs|rejectattr('v', 'defined')|list
messages|selectattr('role', 'equalto', 'user')|list
messages|selectattr('role', 'equalto', 'user')|length
messages|rejectattr('role', 'in', ['user', 'tool'])|map(attribute='role')|join(',')
messages|selectattr('role')|first
l|select('notest')|list
l|selectattr
l|sort ~ l|sort(reverse=true) ~ ls|sort ~ ls|sort(case_sensitive=true) ~ ls|sort(true)
recs|sort(attribute='n')|map(attribute='n')|join ~ recs|sort(attribute='g,n')|map(attribute='n')|join ~ recs|sort(attribute='g', reverse=true)|map(attribute='n')|join
[1, 'a']|sort
[3, 1.5, true]|sort
[[2, 1], [1, 2], [1]]|sort
'hello'|sort|join
d|sort
[1, 2, 1, 'a', 'A']|unique|list ~ ['b', 'B', 'a']|unique(true)|list ~ recs|unique(attribute='g')|map(attribute='n')|list
[[1], [1]]|unique|list
l|reverse|list ~ s|reverse ~ d|reverse|list
l|reverse
l|map('string')|reverse
'aXbX'|replace('X', '-') ~ 'aXbX'|replace('X', '-', 1) ~ 123|replace(2, 'x') ~ undefinedvar|replace('a', 'b')
s|upper ~ s|lower ~ 'hello wOrld'|title ~ 'hELLO wORLD'|capitalize ~ 5|upper ~ none|upper ~ undefinedvar|upper
"foo-bar (baz) [qux] {x} <y> they're"|title
u|title ~ u|upper
'42'|int ~ '42.7'|int ~ 'x'|int ~ 'x'|int(5) ~ '0x1f'|int(base=16) ~ '1f'|int(0, 16) ~ 3.9|int ~ -3.9|int ~ true|int ~ none|int ~ ' 7 '|int ~ '1_000'|int ~ [1]|int ~ '-5'|int ~ ''|int
undefinedvar|int
'0b11'|int(base=2) ~ '0o17'|int(base=8) ~ '0x10'|int(base=0) ~ '010'|int ~ '1e3'|int ~ '+5'|int
'1.5'|float ~ 'x'|float ~ 'x'|float(2) ~ 3|float ~ none|float ~ '1e5'|float ~ ' 2 '|float ~ 'inf'|float ~ 'nan'|float ~ '0x10'|float
42|string ~ 1.0|string ~ none|string ~ [1]|string ~ undefinedvar|string
42.55|round ~ 42.55|round(1) ~ 42.55|round(1, 'floor') ~ 42.51|round(1, 'ceil') ~ 2.5|round ~ 3.5|round ~ 42|round ~ 1234|round(-2) ~ -2.5|round ~ 0.125|round(2) ~ 2.675|round(2)
2.5|round(method='ceil') ~ 7|round(0, 'floor') ~ 1250|round(-2) ~ 1350|round(-2) ~ 15.5|round(-1)
'x'|round
2.5|round(1, 'bad')
-5|abs ~ 5.5|abs ~ (-5.5)|abs ~ true|abs ~ neg|abs
'x'|abs
l|sum ~ recs|sum(attribute='g') ~ []|sum ~ [1.5, 2]|sum ~ [[1], [2]]|sum(start=[]) ~ l|sum(start=10)
ls|sum
l|min ~ l|max ~ ls|min ~ ls|max ~ ls|min(true) ~ recs|max(attribute='g')
[]|min
[1, 'a']|max
lines|indent ~ '|' ~ lines|indent(2, true) ~ '|' ~ lines|indent(2, blank=true) ~ '|' ~ lines|indent('> ') ~ '|' ~ 'x'|indent ~ '|' ~ 'a\n'|indent
''|indent(2, true)
5|indent
nest|items|list ~ undefinedvar|items|list
5|items|list
d|items|first
d|dictsort ~ d|dictsort(true) ~ d|dictsort(by='value') ~ d|dictsort(reverse=true) ~ d|dictsort(false, 'value', true)
d|dictsort(by='x')
l|dictsort
[1, 2, 3, 4, 5]|batch(2)|list ~ [1, 2, 3]|batch(2, 'x')|list ~ []|batch(2)|list
[1, 2, 3, 4, 5]|slice(2)|list ~ [1, 2, 3, 4]|slice(3, 'x')|list
recs|groupby('g')
recs|groupby('g')|map(attribute='grouper')|list
recs|groupby('n')|map('first')|list
recs|groupby('v.w', default=0)|map('first')|list
recs|groupby('v.w')
'<a href="x">\'&'|e ~ '<'|escape ~ '<'|e|e ~ '<'|e|forceescape ~ ('<'|safe|e)
'<b>'|safe ~ '<'
('<b>'|safe) + '<i>'
'<i>' + ('<b>'|safe)
'[' + tools|tojson|safe + ']'
['<'|safe]|join('<') ~ ('<'|safe)|upper ~ ('a'|safe).replace('a', '<')
'a b/c?d=é&'|urlencode ~ {'a b': 'c/d', 'x': 1}|urlencode ~ [('k', 'v w')]|urlencode
'hello big wide world'|wordcount ~ "it's a_b 12"|wordcount ~ ''|wordcount
'hello big wide world and more'|truncate(12) ~ '|' ~ 'hello big wide world and more'|truncate(12, true) ~ '|' ~ 'hello big wide'|truncate(12) ~ '|' ~ 'hello big wide world'|truncate(11, false, '!', 0) ~ '|' ~ 'nospaceshereatallreally'|truncate(9)
'%s-%s'|format('a', 2) ~ '%(x)s'|format(x=5)
'%s'|format
d|attr('a') ~ '|' ~ s|attr('upper') is defined
d|attr('keys') is callable
'abc'|center(9) ~ '|'
5|nofilter
'x'|upper(1)
l|length(1)
l|join(sep='x')
l|sort(foo=1)
ls|sort(attribute='n')
range(4).index(1) ~ range(4).count(9)
n.b|attr('a')
range(4)|urlencode
d|truncate(6)
l|truncate(1, true, '', 0)
('ab'|safe)|list
'ab' % zz
""")
# ---- tests --------------------------------------------------------------------------------------------
for name in ["defined", "undefined", "none", "string", "number", "integer", "float", "boolean", "mapping", "sequence", "iterable", "callable", "true", "false"]:
    add("{%% for x in [n, f, t, no, nil, s, l, d, (1,), zz, range(3), l|map('string'), d.keys(), namespace(), dict, s.upper] %%}{{ x is %s }} {%% endfor %%}" % name)
    add("{{ undefinedvar is %s }}{{ n is not %s }}" % (name, name))
exprs(r"""
3 is odd ~ (4 is odd) ~ (4 is even) ~ (-1 is odd) ~ (9 is divisibleby 3) ~ (9 is divisibleby(2)) ~ (2.0 is even)
'x' is odd
1 is eq 1.0
1 is equalto 2
1 is sameas 1
true is sameas true
1 is sameas true
none is sameas none
1 is ne 2 and 1 is lt 2 and 2 is ge 2 and 3 is gt 2 and 1 is le 1
1 is in [1, 2]
'a' is in 'abc'
1 is not in [1]
'abc' is lower ~ ('ABC' is upper) ~ ('aBc' is lower) ~ (1 is lower)
'upper' is filter ~ ('nope' is filter) ~ ('odd' is test) ~ ('nope' is test)
'<'|e is escaped
not 1 is odd
n is odd and s is string
n is defined and n is number
undefinedvar is defined or n == 7
1 is nosuchtest
1 is odd is even
n is odd if t else 5
n is divisibleby 7 and true
1 + 1 is odd
-1 is odd
l is not mapping
undefinedvar.x is defined
d.zz.x is defined
messages[0].tool_calls is defined
messages[2].tool_calls is iterable and messages[2].tool_calls is not string
1 is eq
""")
# ---- statements ---------------------------------------------------------------------------------------
add(
    "{% for x in l %}{{ loop.index }}{{ loop.index0 }}{{ loop.revindex }}{{ loop.revindex0 }}{{ loop.first }}{{ loop.last }}{{ loop.length }}{{ loop.depth }}{{ loop.depth0 }};{% endfor %}",
    "{% for x in l %}{{ loop.previtem }}-{{ x }}-{{ loop.nextitem }};{% endfor %}",
    "{% for x in l %}{{ loop.previtem is defined }}{{ loop.nextitem is defined }};{% endfor %}",
    "{% for x in l %}{{ loop.cycle('a', 'b') }}{{ loop.changed(x > 1) }}{% endfor %}",
    "{% for x in l %}{{ loop.cycle() }}{% endfor %}",
    "{% for x in [] %}a{% else %}none{% endfor %}",
    "{% for x in undefinedvar %}a{% else %}none{% endfor %}",
    "{% for x in nil %}a{% endfor %}",
    "{% for x in 5 %}a{% endfor %}",
    "{% for c in 'héy' %}[{{ c }}]{% endfor %}",
    "{% for k in d %}{{ k }}{% endfor %}",
    "{% for k, v in d.items() %}{{ k }}={{ v }};{% endfor %}",
    "{% for k, v in nest.items() %}{{ k }}={{ v }};{% endfor %}",
    "{% for k, v in d|dictsort %}{{ k }}={{ v }};{% endfor %}",
    "{% for k, v in nest|items %}{{ k }}={{ v }};{% endfor %}",
    "{% for a, b in [(1, 2), [3, 4], 'xy'] %}{{ a }}{{ b }};{% endfor %}",
    "{% for a, b in [(1, 2, 3)] %}{{ a }}{% endfor %}",
    "{% for a, b in [1] %}{{ a }}{% endfor %}",
    "{% for x in l if x > 1 %}{{ loop.index }}:{{ x }}/{{ loop.length }}{% else %}no{% endfor %}",
    "{% for x in l if x > 10 %}{{ x }}{% else %}no{% endfor %}",
    "{% for x in l %}{% if x == 1 %}{% continue %}{% endif %}{{ x }}{% endfor %}",
    "{% for x in l %}{% if x == 1 %}{% break %}{% endif %}{{ x }}{% else %}E{% endfor %}",
    "{% for x in l %}{% for y in l %}{% if y == 1 %}{% break %}{% endif %}{{ x }}{{ y }} {% endfor %}{% endfor %}",
    "{% break %}",
    "{% for x in l recursive %}{{ x }}{% endfor %}",
    "{% for x in [[1, [2, 3]], [4]] recursive %}{% if x is iterable %}<{{ loop(x) }}>{% else %}{{ x }}@{{ loop.depth }}{% endif %}{% endfor %}",
    "{% for x in [[1]] %}{{ loop(x) }}{% endfor %}",
    "{% for x in l %}{% for y in 'ab' %}{{ loop.index }}{% endfor %}{{ loop.index }} {% endfor %}",
    "{% for x in l %}{% set outer = loop %}{% for y in 'ab' %}{{ outer.index }}.{{ loop.index }} {% endfor %}{% endfor %}",
    "{% for x in range(3) %}{{ x }}{% endfor %}{% for x in range(1, 10, 3) %}{{ x }}{% endfor %}{% for x in range(3, 0, -1) %}{{ x }}{% endfor %}",
    "{{ range(3) }}{{ range(1, 3)|list }}{{ range(0) }}{{ range(5, 1, -2) }}",
    "{{ range() }}", "{{ range(1, 2, 0) }}", "{{ range('a') }}", "{{ range(1.5) }}", "{{ range(1000000) }}",
    "{% for x in l %}{% set y = x %}{% endfor %}{{ y }}|{{ x }}",
    "{% set y = 0 %}{% for x in l %}{% set y = y + x %}{{ y }}{% endfor %}|{{ y }}",
    "{% set ns = namespace(y=0) %}{% for x in l %}{% set ns.y = ns.y + x %}{% endfor %}{{ ns.y }}",
    "{% set ns = namespace(a=1, b='x') %}{{ ns.a }}{{ ns['b'] }}{{ ns.zz }}{{ ns.zz is defined }}{{ ns }}",
    "{% set ns = namespace({'a': 1}, b=2) %}{{ ns.a }}{{ ns.b }}",
    "{% set l.x = 1 %}", "{% set undefinedvar.x = 1 %}",
    "{% set a, b = 1, 2 %}{{ a }}{{ b }}", "{% set a, b = [1] %}", "{% set a = 1, 2 %}{{ a }}", "{% set a %}x{{ n }}y{% endset %}[{{ a }}]",
    "{% set a | upper | replace('X', '-') %}xy{{ s }}{% endset %}[{{ a }}]", "{% set a = b = 1 %}",
    "{% set ns = namespace() %}{% set ns.a, ns.b = 1, 2 %}{{ ns.a }}{{ ns.b }}",
    "{% set ns = namespace() %}{% set ns.a %}blk{% endset %}{{ ns.a }}",
    "{% if 1 %}{% set q1 = 5 %}{% endif %}{{ q1 }}", "{% if 0 %}{% set q1 = 5 %}{% endif %}[{{ q1 }}]", "{% if 0 %}{% set n = 5 %}{% endif %}[{{ n }}]",
    "{% if n == 7 %}a{% elif n == 8 %}b{% else %}c{% endif %}", "{% if n == 8 %}a{% elif n == 7 %}b{% else %}c{% endif %}", "{% if 0 %}a{% elif 0 %}b{% else %}c{% endif %}",
    "{% if undefinedvar %}a{% endif %}{% if not undefinedvar %}b{% endif %}{% if undefinedvar is defined and undefinedvar.x %}c{% endif %}",
    "{% if %}{% endif %}", "{% if 1 %}", "{% endif %}", "{% if 1 %}{% endfor %}", "{% nosuchtag %}", "{% else %}", "{{ 1", "{{ }}", "{{ 1 2 }}", "{{ (1 }}", "{{ 1) }}", "{% for %}{% endfor %}", "{% for x l %}{% endfor %}",
    "{{ 'abc }}", "{# open", "{{ a. }}", "{{ a| }}", "{{ 1 + }}", "{{ [1 }}", "{{ {1 2} }}", "{{ {'a' 1} }}", "{{ f(a=1, 2) }}", "{{ f(,) }}", "{{ $ }}", "{{ a ! b }}", "{{ 1 = 2 }}", "{{ 'a' is }}", "{% set 1 = 2 %}", "{% set true = 2 %}", "{% macro %}{% endmacro %}", "{% raw %}x",
    "{% macro m(a, b=2, c=none) %}{{ a }}-{{ b }}-{{ c }};{% endmacro %}{{ m(1) }}{{ m(1, 3) }}{{ m(1, c=5) }}{{ m(a=9) }}{{ m() }}",
    "{% macro m(a, b=a) %}{{ a }}{{ b }}{% endmacro %}{{ m(1) }}", "{% macro m(a) %}{{ a }}{% endmacro %}{{ m(1, 2) }}", "{% macro m(a) %}{{ a }}{% endmacro %}{{ m(b=2) }}", "{% macro m(a) %}{{ a }}{% endmacro %}{{ m(1, a=2) }}",
    "{% macro m(a) %}{{ a is defined }}{{ varargs }}{{ kwargs }}{% endmacro %}{{ m() }}{{ m(1, 2, 3, x=4) }}",
    "{% macro m() %}[{{ caller() }}]{% endmacro %}{% call m() %}body {{ n }}{% endcall %}", "{% macro m(x) %}[{{ caller(x, 2) }}]{% endmacro %}{% call(a, b) m(5) %}{{ a }}+{{ b }}{% endcall %}",
    "{% macro m() %}{{ caller is defined }}{{ caller }}{% endmacro %}{{ m() }}", "{% macro m() %}{{ caller() }}{% endmacro %}{{ m() }}", "{% macro m() %}x{% endmacro %}{% call m() %}b{% endcall %}", "{% call 5 %}{% endcall %}",
    "{% macro fact(k) %}{% if k <= 1 %}1{% else %}{{ k * (fact(k - 1)|int) }}{% endif %}{% endmacro %}{{ fact(5) }}", "{% macro a() %}{{ b() }}{% endmacro %}{% macro b() %}B{% endmacro %}{{ a() }}",
    "{% set x = 1 %}{% macro m() %}{{ x }}{% set x = 2 %}{{ x }}{% endmacro %}{{ m() }}{{ x }}", "{% macro m() %}{{ x }}{% endmacro %}{% set x = 5 %}{{ m() }}", "{% for x in l %}{% macro m() %}{{ x }}{% endmacro %}{{ m() }}{% endfor %}",
    "{% macro m(a, b=1) %}{% endmacro %}{{ m.name }}{{ m.arguments }}", "{% macro m() %}  x  {% endmacro %}[{{ m()|trim }}]{{ m() + 'y' }}{{ m()|length }}", "{% macro m(a=1, b) %}{% endmacro %}",
    "{{ m(1) }}{% macro m(a) %}{{ a }}{% endmacro %}", "{% macro m(*a) %}{% endmacro %}", "{% macro m(a) %}{{ a }}{% endmacro %}{{ m(*[1]) }}{{ m(**{'a': 2}) }}", "{{ dict(**{'a': 1}, b=2) }}", "{{ dict(a=1, b=2) }}{{ dict({'x': 1}) }}{{ dict([('p', 1)]) }}{{ dict() }}", "{{ '{}{}'.format(*[1, 2]) }}", "{{ f(*5) }}",
    "{% with %}{{ n }}{% endwith %}", "{% with a = 1, b = n %}{{ a }}{{ b }}{% endwith %}{{ a }}", "{% with n = 1, b = n %}{{ n }}{{ b }}{% endwith %}{{ n }}", "{% with a = 1 %}{% set n = 2 %}{{ n }}{% endwith %}{{ n }}",
    "{% filter upper %}abc {{ s }}{% endfilter %}", "{% filter trim | upper %}  abc {% endfilter %}|", "{% filter replace('a', 'b') %}aaa{% endfilter %}", "{% filter nope %}{% endfilter %}", "{% set x = 1 %}{% filter upper %}{% set x = 2 %}{{ x }}a{% endfilter %}{{ x }}",
    "{% raw %}{{ x }}{% if %}{% endraw %}", "a{%- raw -%} {{ x }} {%- endraw -%} b", "{% raw %}\n x\n{% endraw %}\ny", "  {% raw %}x{% endraw %}", "{% raw %} {% endraw +%}\nx",
    "{# c #}x{# multi\nline #}y", "a {#- c -#} b", "a\n  {# c #}\nb", "a\n{# c +#}\nb", "a {#+ c #} b", "{#{{ x }}#}",
    "{% generation %}x{{ n }}{% endgeneration %}y", "{% for m in messages %}{% generation %}{{ m.role }}{% set z = 1 %}{% endgeneration %}{{ z }}{% endfor %}",
    "x{#", "x{% raw %}", "{% for loop in l %}{% endfor %}",
    "{% print n, s %}", "{% print %}", "{% do l.append(1) %}", "{% include 'x' %}", "{% set c = cycler('a', 'b') %}{{ c.next() }}{{ c.next() }}{{ c.next() }}{{ c.current }}{% set _ = c.reset() %}{{ c.current }}", "{% set j = joiner(', ') %}{% for x in l %}{{ j() }}{{ x }}{% endfor %}",
    "{{ raise_exception('boom') }}", "{{ raise_exception() }}", "{% if 0 %}{{ raise_exception('boom') }}{% endif %}ok",
    "{% set g = l|map('string') %}{{ g|list }}{{ g|list }}", "{% set g = l|select('odd') %}{% for x in g %}{{ x }}{% endfor %}{% for x in g %}{{ x }}{% else %}E{% endfor %}", "{% set g = l|map('string') %}{{ '1' in g }}{{ g|list }}", "{{ l|map('string') is iterable }}{{ (l|map('string'))|length }}", "{{ (l|map('string'))[0] }}", "{% if []|map('string') %}yes{% endif %}", "{{ l|map('string') + [1] }}",
    "{% for x in l|reverse %}{{ x }}{{ loop.last }}{% endfor %}", "{% for x in l|map('string') %}{{ loop.length }}{{ loop.revindex }}{% endfor %}", "{% for b in [1,2,3]|batch(2) %}{{ b }}{% endfor %}", "{% for g in recs|groupby('g') %}{{ g.grouper }}{{ g.list|length }}{{ g[0] }}{% endfor %}", "{% for k, v in recs|groupby('g') %}{{ k }}:{{ v|map(attribute='n')|join }};{% endfor %}",
    "{% set x = 5 %}{% for i in l %}{% if i == 1 %}{% set x = i %}{% endif %}{{ x }}{% endfor %}{{ x }}", "{% for loop in l %}{{ loop }}{% endfor %}", "{% for i in l %}{% else %}{% endfor %}{{ loop }}", "{% set loop = 3 %}{{ loop }}",
    "{{ '{{' }}{{ '%}' }}{{ \"}}\" }}", "{{ {'a': {'b': 1}}}}", "{{ {'a': {'b': 1}}['a']['b'] }}", "{{{'a': 1}}}", "{{ [1, 2]|length}}{{-1}}{{- 1 -}} x", "{ { } } {% if 1 %}}{% endif %}", "{{1}}{{2}}\n{{3}}\n", "x\n", "x\n\n", "\n", "", "\n\nx", "{{ n }}\n", "{% if 1 %}\nx\n{% endif %}\n", "a\r\nb\rc\n",
    "{{ 'a\nb' }}", "{{ 'a\\\nb' }}", "{{ n\n+\n1 }}", "{%if n%}x{%endif%}", "{%-if n-%} x {%-endif-%} y", "{{ n -}} \n {{- n }}",
)
add(
    "  {% if 1 %}  x  {% endif %}  y", "a\n  {% if 1 %}\n  x\n  {% endif %}\nb", "a\n  {%+ if 1 %}\n  x\n  {%+ endif %}\nb", "a\n  {% if 1 +%}\n  x\n  {% endif +%}\nb", "a \n {%- if 1 -%} \n x \n {%- endif -%} \n b", "a\n\t{% set x = 1 %}\n\t{{ x }}\n", "a  {% set x = 1 %}  b", "{% set x = 1 %}  \n  {{ x }}", "{% for x in l %}\n  {{ x }}\n{% endfor %}\n", "{% for x in l -%}\n  {{ x }}\n{%- endfor %}\n", "   {% set x = 1 %}", "\n   {# c #}   \nx", "  {{ n }}  ", "a\n  {{ n }}\n  b", "\u00a0{%- set x = 1 -%}\u3000b", "a\n\u00a0{% set x = 1 %}\nb", "{% if 1 -%}\n\n  x{% endif %}", "{% if 1 %}\n\n  x{% endif %}", "{% if 1 %} {# c #}\n x {% endif %}", "x{% if 1 %}\n{% endif %}\ny", "{% set a = 1 %}{% set b = 2 %}\n{% set c = 3 %}\nx", "  {% set a = 1 %}  {% set b = 2 %}\nx", "  {{ n }}  {% set b = 2 %}\nx", "a\n {#- c #}\n b", "a\n {# c -#}\n b",
    "{%- for m in messages -%}\n  {{- '<|' + m.role + '|>' -}}\n{%- endfor -%}\n", "{{- bos_token }}{% for m in messages %}{{ m['role'] }}: {% if m['content'] is string %}{{ m['content'] }}{% elif m['content'] is iterable %}{% for p in m['content'] %}{{ p.type }}{% endfor %}{% else %}-{% endif %}\n{% endfor %}",
    "{% for m in messages %}{{ loop.index0 }}{{ 'L' if loop.last else '' }}{{ m.get('tool_calls') is not none }}{% endfor %}",
    "{%- set system_message = messages[0]['content'] if messages[0]['role'] == 'system' else '' -%}{%- set loop_messages = messages[1:] -%}{{ system_message }}{{ loop_messages|length }}",
    "{{ messages[0] | tojson }}\n{{ tools | tojson(indent=2) }}", "{% for t in tools %}{{ t.function.parameters.properties.items() }}{{ t.function|tojson }}{% endfor %}", "{{ (messages | selectattr('role', 'equalto', 'user') | list | last).content }}", "{{ messages|map(attribute='role')|unique|join('/') }}", "{% if messages[0].content is string and 'brief' in messages[0].content %}y{% endif %}", "{{ 'tool_calls' in messages[2] and messages[2].tool_calls }}", "{% set ns = namespace(last=-1) %}{% for m in messages %}{% if m.role == 'user' %}{% set ns.last = loop.index0 %}{% endif %}{% endfor %}{{ ns.last }}", "{% for m in messages[::-1] %}{% set i = (messages|length - 1) - loop.index0 %}{{ i }}{{ m.role }} {% endfor %}", "{{ bos_token + eos_token }}{{ add_generation_prompt }}{{ tools is not none }}{{ documents }}{{ documents is none }}",
)

# ---- combinations -------------------------------------------------------------------------------------
WS = ["", " ", "\n", " \n ", "x", "x\n", " x "]
for a, (b0, b1), c in itertools.product(WS[1:6:2] + ["\n "], [("{%", "%}"), ("{%-", "%}"), ("{%+", "%}"), ("{%", "-%}"), ("{%", "+%}"), ("{%-", "-%}")], WS[1:6:2] + ["\n  y\n"]):
    add("[" + a + b0 + " if n " + b1 + c + b0 + " endif " + b1 + a + "]")
for a, (b0, b1), c in itertools.product([" ", "\n ", "\n"], [("{{", "}}"), ("{{-", "}}"), ("{{", "-}}"), ("{{+", "}}"), ("{#", "#}"), ("{#-", "#}"), ("{#", "-#}"), ("{#+", "+#}")], [" ", "\n ", "\n\n"]):
    add(a + b0 + " n " + b1 + c + "z" + a + b0 + " n " + b1 + c)
VALUES = ["0", "7", "-3", "2.5", "'ab'", "''", "true", "none", "[1]", "(2,)", "{'a': 1}", "zz", "range(2)"]
for op in ["+", "-", "*", "/", "//", "%", "==", "<", "in", "~", "and"]:
    add("".join("{{ %s %s %s }}|" % (a, op, b) for a in VALUES[:4] for b in VALUES[:4] if not (op in "//%" and b == "0")))
    for a, b in itertools.product(VALUES[::2], VALUES[1::2]):
        add("{{ %s %s %s }}" % (a, op, b))


def main():
    cases = []
    seen = set()
    for t in T:
        if t in seen:
            continue
        seen.add(t)
        try:
            used = {k: v for k, v in DATA.items() if k != "variables"}
            used["documents"] = None
            case = {"t": t, "out": env.from_string(t).render(**used, **DATA["variables"])}
            case["out"].encode()
            if " object at 0x" in case["out"] or "<class " in case["out"] or "<built-in" in case["out"] or "<bound" in case["out"] or "<generator" in case["out"]:
                continue  # addresses
        except Exception as e:  # noqa: BLE001 - any refusal counts
            case = {"t": t, "error": str(e)[:80]}
        cases.append(case)
    with open("cases.json", "w") as f:
        f.write('{"in": %s,\n"cases": [\n' % json.dumps(DATA, ensure_ascii=True))
        f.write(",\n".join(json.dumps(c, ensure_ascii=True) for c in cases))
        f.write("\n]}\n")
    print(len(cases), "cases,", sum("error" in c for c in cases), "errors")


main()
