#!/usr/bin/env python3
"""What Jinja2 makes of its tests, filters, operators and Python's methods on values of every kind.

    python reference/jinja.py crates/limpid-data/fixtures/chat/jinja.json

The environment is the one that transformers runs chat templates in. The file holds values, uses of a value X, and for
each use what each value gives: the text, null where Jinja2 raises, or false where the text is about Python itself.
limpid's templates must give the same (`values_of_every_kind_give_what_jinja2_gives`). Nothing is downloaded.
"""

import copy
import json
import re
import sys

from transformers.utils.chat_template_utils import _compile_jinja_template

VALUES = [
    "none", "missing", "missing.x", "true", "false", "0", "1", "(-7)", "2.5", "1.0", "(-0.0)", "1e20",
    "''", "'Ab c'", "'abc'", "'ABC 1'", "'12'", "' 3.7 '", "'x\\ny\\n\\nz'", "'ß<é>&\\t'", "'%s|{}'",
    "[]", "[1, 2, 3]", "['b', 'A', 'a']", "[[1, 2], [3, 4]]", "[none, 1, '']",
    "[{'role': 'b', 'n': 2}, {'role': 'a', 'n': 1}]",
    "()", "(1,)", "(2, 1)", "{}", "{'a': 1, 'B': none}", "{'b': [1, 'x'], 'role': 'a'}", "{1: 2}", "range(3)",
    "range(0)",
    "messages", "messages[0]", "messages[0].content", "messages[0].nothing", "tools",
]

TESTS = """boolean callable defined even false float integer iterable lower mapping none number odd sequence string true undefined
upper filter test divisibleby(3) eq(1) eq(1.0) eq(none) eq('') ne(0) in([1,'a',none]) in('Ab_c') in({'a':1}) in(missing) lt(2) ge('a') gt([1,2])
sameas(none) sameas(true) sameas(1)""".split()

FILTERS = """abs attr('a') capitalize center(7) count d('D') d('D',true) default('D') default('D',true) default(boolean=true) dictsort
dictsort(true) dictsort(by='value') dictsort(reverse=true) e escape first float float(7) forceescape indent indent(2) indent(2,true)
indent(width=1,blank=true) indent('>') int int(9) int(base=16) items|list join join(', ') join('-',attribute='role') last length
list lower map('upper')|list map('length')|list map(attribute='role')|list map(attribute='role',default='D')|list map('default','D')|list max min
max(attribute='n') pprint reject|list reject('none')|list reject('equalto',1)|list rejectattr('role')|list rejectattr('role','equalto','a')|list
replace('a','X') replace('a','X',1) replace('b',1) reverse|list round round(1) round(1,'floor') round(method='ceil') select|list
select('string')|list select('in',[1,'a'])|list selectattr('role')|list selectattr('role','equalto','a')|list selectattr('n','defined')|list
selectattr('n','gt',1)|list batch(2)|list batch(2,'F')|list slice(2)|list slice(2,'F')|list sort sort(reverse=true) sort(case_sensitive=true)
sort(attribute='role') string striptags sum sum(start=1) sum(attribute='n') title tojson tojson(indent=2) tojson(ensure_ascii=false)
tojson(sort_keys=true) tojson(separators=(',',':')) trim trim('A') truncate(5) truncate(5,true,'') truncate(3,true,'..',0) unique|list unique(true)|list
unique(attribute='role')|list upper urlencode wordcount wordwrap(3) wordwrap(3,false) filesizeformat format(1) groupby('role')|list|length
safe string|length list|length list|first join|upper trim|upper string|trim|length xmlattr""".split()

METHODS = """upper() lower() strip() strip('A') lstrip() lstrip('Ax') rstrip() rstrip('c') title() capitalize() split() split('b') split('b',1)
split(maxsplit=1) rsplit('b',1) splitlines() splitlines(true) startswith('A') startswith(('x','A')) endswith('c') find('b') rfind('b') index('b')
count('b') replace('a','X') replace('A','',1) isdigit() isalpha() isalnum() isspace() islower() isupper() isnumeric() isdecimal() istitle()
join(['a','b']) join('xyz') format(1) zfill(4) ljust(6) rjust(6) center(7) swapcase() casefold() removeprefix('A') removesuffix('c') partition('b')
rpartition('b') expandtabs() items()|list keys()|list values()|list get('a') get('a','D') get('nothing') count(1) index(1) copy() append(1)
encode()|length pop() update({}) bit_length() is_integer()""".split()

OPERATORS = """
X; X + 1; X + 'a'; X + [1]; 1 + X; 'a' ~ X; X ~ none; X * 2; X - 1; X / 2; X // 2; X % 2; X ** 2; -X; +X; not X; X == 1; X == none; X == ''; X == []
X == true; X != 'abc'; X == missing; X < 2; X >= 'a'; 1 < X; 'a' in X; 1 in X; none in X; X in 'Ab c'; X in [1, 'abc', none]; X not in [none]; X[0]
X[-1]; X[5]; X['a']; X['role']; X[none]; X.a; X.role; X.role.x; X[1:]; X[:-1]; X[::-1]; X[::2]; X[1:2]; X and 1; X or 'else'; 1 and X; 'yes' if X
'yes' if X else 'no'; 'yes' if X is not none else 'no'; [X]; (X,); {'k': X}; [X, [X]]; (X, 1); X(); X.upper; dict(X); dict(a=X); range(X) | list
range(X, 4) | list; namespace(a=X).a; (X | string) + '|'; [X] + [1]; [1] * X; 'ab' * X; '%s' % X; '%s' | format(X); '{}'.format(X); '%d' | format(X)
'%5.2f' | format(X); '-'.join(X); [X] | join; [X, 1] | max; [X, X] | unique | list; [X] | tojson; {'k': X} | tojson
"""

STATEMENTS = [
    "{% for i in X %}{{ i }};{% else %}none{% endfor %}",
    "{% for i in X %}{{ loop.index }}/{{ loop.length }}{{ ',' if not loop.last }}{% endfor %}",
    "{% for i in X %}{{ loop.index0 }}{{ loop.revindex }}{{ loop.revindex0 }}{{ loop.first }}{{ loop.cycle('a', 'b') "
    "}}{{ loop.changed(i) }}{{ loop.depth }}{% endfor %}",
    "{% for i in X if i %}{{ i }}{% endfor %}",
    "{% for i in X | reverse %}{{ i }}{% endfor %}",
    "{% for a, b in X %}{{ a }}={{ b }};{% endfor %}",
    "{% for k, v in X.items() %}{{ k }}={{ v }};{% endfor %}",
    "{% for k, v in X | items %}{{ k }}={{ v }};{% endfor %}",
    "{% for k, v in X | dictsort %}{{ k }}={{ v }};{% endfor %}",
    "{% set a, b = X %}{{ a }}{{ b }}",
    "{% set ns = namespace(a=X) %}{{ ns.a is defined }}{{ ns.b is defined }}{{ ns.b }}",
    "{% set a %}<{{ X }}>{% endset %}{{ a | length }}{{ a }}",
    "{% macro f(x, y='d') %}{{ x }}{{ y }}{{ varargs }}{{ kwargs }}{% endmacro %}{{ f(X) }}",
    "{% macro f(x=X) %}[{{ x }}]{% endmacro %}{{ f() | length }}{{ f(x=1) }}{{ f(none) }}",
    "{% macro f() %}{{ caller(X) }}{% endmacro %}{% call(a) f() %}<{{ a }}>{% endcall %}",
    "{% filter upper %}{{ X }}{% endfilter %}",
    "{% if X %}t{% elif X is none %}n{% elif X is undefined %}u{% else %}f{% endif %}",
    "{% with a = X %}{{ a }}{% endwith %}",
    "{% set x = X %}{% for i in [1] %}{% set x = 5 %}{% endfor %}{{ x }}",
    "{% if X is not none and X is defined and X != '' %}y{% else %}n{% endif %}",
    "{% if X is string %}s{% elif X is mapping %}m{% elif X is iterable %}i{% else %}o{% endif %}",
    "{% if X is iterable and X is not mapping and X is not string %}l{% endif %}",
    "{{- X -}} {{ X }}",
]

MESSAGES = [{"role": "user", "content": "Hi <b> \u00e9"}, {"role": "assistant", "content": "Yes."}]


def uses():
    found = [f"{{{{ X is {test} }}}}" for test in TESTS]
    found += [f"{{{{ X | {name} }}}}" for name in FILTERS]
    found += [f"{{{{ X.{name} }}}}" for name in METHODS]
    found += [f"{{{{ {part.strip()} }}}}" for part in re.split("[;\n]", OPERATORS.strip())]
    return found + STATEMENTS


def given(source):
    try:
        text = _compile_jinja_template(source).render(messages=copy.deepcopy(MESSAGES), tools=None, documents=None,
            add_generation_prompt=True)
    except Exception:
        return None
    # what names a place in Python's memory, or a class of Python's, is not compared
    return False if re.search(r" at 0x|<class |object>|^<built-in|dict_", text) else text


def main(to):
    table = []
    for use in uses():
        # X stands alone: a part of another word stays
        row = [given(re.sub(r"(?<!')\bX\b(?!')", lambda _: value, use)) for value in VALUES]
        if any(isinstance(text, str) for text in row):
            table.append([use, row])
    with open(to, "w", encoding="utf-8") as file:
        rows = ",\n".join(json.dumps(row, ensure_ascii=False) for row in table)
        file.write(f'{{"values": {json.dumps(VALUES, ensure_ascii=False)},\n"messages": {json.dumps(MESSAGES, ensure_ascii=False)},\n"uses": [\n{rows}\n]}}\n')
    print(f"{len(table)} uses of {len(VALUES)} values")


if __name__ == "__main__":
    main(*sys.argv[1:])
