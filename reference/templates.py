#!/usr/bin/env python3
"""What transformers makes of chat templates as public models have them.

    python reference/templates.py crates/limpid-data/fixtures/chat/templates.json

Each template is one that a family of models carries in its files. The file holds, for each, its tokens and what
`apply_chat_template` writes of the conversations below: the text, or `refused`, what the template says of a
conversation that it does not take. `limpid` holds its own to it. Nothing is downloaded.
"""

import datetime
import json
import sys

import jinja2
from tokenizers import Tokenizer, models
from transformers import PreTrainedTokenizerFast

LLAMA_3 = (
    "{% set loop_messages = messages %}{% for message in loop_messages %}"
    "{% set content = '<|start_header_id|>' + message['role'] + '<|end_header_id|>\n\n'+ message['content'] | trim + "
        "'<|eot_id|>' %}"
    "{% if loop.index0 == 0 %}{% set content = bos_token + content %}{% endif %}{{ content }}{% endfor %}"
    "{% if add_generation_prompt %}{{ '<|start_header_id|>assistant<|end_header_id|>\n\n' }}{% endif %}"
)

# the branch for programs that tell no date: transformers would write that of today
LLAMA_3_2 = """{{- bos_token }}
{%- if custom_tools is defined %}
    {%- set tools = custom_tools %}
{%- endif %}
{%- if not tools_in_user_message is defined %}
    {%- set tools_in_user_message = true %}
{%- endif %}
{%- if not date_string is defined %}
    {%- if strftime_now is defined and False %}
        {%- set date_string = strftime_now("%d %b %Y") %}
    {%- else %}
        {%- set date_string = "26 Jul 2024" %}
    {%- endif %}
{%- endif %}
{%- if not tools is defined %}
    {%- set tools = none %}
{%- endif %}

{#- This block extracts the system message, so we can slot it into the right place. #}
{%- if messages[0]['role'] == 'system' %}
    {%- set system_message = messages[0]['content']|trim %}
    {%- set messages = messages[1:] %}
{%- else %}
    {%- set system_message = "" %}
{%- endif %}

{#- System message #}
{{- "<|start_header_id|>system<|end_header_id|>\\n\\n" }}
{%- if tools is not none %}
    {{- "Environment: ipython\\n" }}
{%- endif %}
{{- "Cutting Knowledge Date: December 2023\\n" }}
{{- "Today Date: " + date_string + "\\n\\n" }}
{%- if tools is not none and not tools_in_user_message %}
    {%- for t in tools %}
        {{- t | tojson(indent=4) }}
        {{- "\\n\\n" }}
    {%- endfor %}
{%- endif %}
{{- system_message }}
{{- "<|eot_id|>" }}

{%- for message in messages %}
    {%- if not (message.role == 'ipython' or message.role == 'tool' or 'tool_calls' in message) %}
        {{- '<|start_header_id|>' + message['role'] + '<|end_header_id|>\\n\\n'+ message['content'] | trim + '<|eot_id|>' }}
    {%- elif 'tool_calls' in message %}
        {%- if not message.tool_calls|length == 1 %}
            {{- raise_exception("This model only supports single tool-calls at once!") }}
        {%- endif %}
    {%- elif message.role == "tool" or message.role == "ipython" %}
        {{- "<|start_header_id|>ipython<|end_header_id|>\\n\\n" }}
        {%- if message.content is mapping or message.content is iterable %}
            {{- message.content | tojson }}
        {%- else %}
            {{- message.content }}
        {%- endif %}
        {{- "<|eot_id|>" }}
    {%- endif %}
{%- endfor %}
{%- if add_generation_prompt %}
    {{- '<|start_header_id|>assistant<|end_header_id|>\\n\\n' }}
{%- endif %}
"""

QWEN_2_5 = """{%- if tools %}
    {{- '<|im_start|>system\\n' }}
    {%- if messages[0]['role'] == 'system' %}
        {{- messages[0]['content'] }}
    {%- else %}
        {{- 'You are Qwen, created by Alibaba Cloud. You are a helpful assistant.' }}
    {%- endif %}
    {%- for tool in tools %}
        {{- "\\n" }}
        {{- tool | tojson }}
    {%- endfor %}
    {{- "\\n</tools><|im_end|>\\n" }}
{%- else %}
    {%- if messages[0]['role'] == 'system' %}
        {{- '<|im_start|>system\\n' + messages[0]['content'] + '<|im_end|>\\n' }}
    {%- else %}
        {{- '<|im_start|>system\\nYou are Qwen, created by Alibaba Cloud. You are a helpful assistant.<|im_end|>\\n' }}
    {%- endif %}
{%- endif %}
{%- for message in messages %}
    {%- if (message.role == "user") or (message.role == "system" and not loop.first) or (message.role == "assistant" and not message.tool_calls) %}
        {{- '<|im_start|>' + message.role + '\\n' + message.content + '<|im_end|>' + '\\n' }}
    {%- elif message.role == "assistant" %}
        {{- '<|im_start|>' + message.role }}
        {%- if message.content %}
            {{- '\\n' + message.content }}
        {%- endif %}
        {{- '<|im_end|>\\n' }}
    {%- elif message.role == "tool" %}
        {%- if (loop.index0 == 0) or (messages[loop.index0 - 1].role != "tool") %}
            {{- '<|im_start|>user' }}
        {%- endif %}
    {%- endif %}
{%- endfor %}
{%- if add_generation_prompt %}
    {{- '<|im_start|>assistant\\n' }}
{%- endif %}
"""

QWEN_3 = """{%- if messages[0].role == 'system' %}
    {{- '<|im_start|>system\\n' + messages[0].content + '<|im_end|>\\n' }}
{%- endif %}
{%- set ns = namespace(multi_step_tool=true, last_query_index=messages|length - 1) %}
{%- for message in messages[::-1] %}
    {%- set index = (messages|length - 1) - loop.index0 %}
    {%- if ns.multi_step_tool and message.role == "user" and message.content is string and not(message.content.startswith('<tool_response>') and message.content.endswith('</tool_response>')) %}
        {%- set ns.multi_step_tool = false %}
        {%- set ns.last_query_index = index %}
    {%- endif %}
{%- endfor %}
{%- for message in messages %}
    {%- if message.content is string %}
        {%- set content = message.content %}
    {%- else %}
        {%- set content = '' %}
    {%- endif %}
    {%- if (message.role == "user") or (message.role == "system" and not loop.first) %}
        {{- '<|im_start|>' + message.role + '\\n' + content + '<|im_end|>' + '\\n' }}
    {%- elif message.role == "assistant" %}
        {%- set reasoning_content = '' %}
        {%- if message.reasoning_content is string %}
            {%- set reasoning_content = message.reasoning_content %}
        {%- else %}
            {%- if '</think>' in content %}
                {%- set reasoning_content = content.split('</think>')[0].rstrip('\\n').split('<think>')[-1].lstrip('\\n') %}
                {%- set content = content.split('</think>')[-1].lstrip('\\n') %}
            {%- endif %}
        {%- endif %}
        {%- if loop.index0 > ns.last_query_index %}
            {%- if loop.last or (not loop.last and reasoning_content) %}
                {{- '<|im_start|>' + message.role + '\\n<think>\\n' + reasoning_content.strip('\\n') + '\\n</think>\\n\\n' + content.lstrip('\\n') }}
            {%- else %}
                {{- '<|im_start|>' + message.role + '\\n' + content }}
            {%- endif %}
        {%- else %}
            {{- '<|im_start|>' + message.role + '\\n' + content }}
        {%- endif %}
        {{- '<|im_end|>\\n' }}
    {%- endif %}
{%- endfor %}
{%- if add_generation_prompt %}
    {{- '<|im_start|>assistant\\n' }}
    {%- if enable_thinking is defined and enable_thinking is false %}
        {{- '<think>\\n\\n</think>\\n\\n' }}
    {%- endif %}
{%- endif %}"""

MISTRAL = """{%- if messages[0]['role'] == 'system' %}
    {%- set system_message = messages[0]['content'] %}
    {%- set loop_messages = messages[1:] %}
{%- else %}
    {%- set loop_messages = messages %}
{%- endif %}

{{- bos_token }}
{%- for message in loop_messages %}
    {%- if (message['role'] == 'user') != (loop.index0 % 2 == 0) %}
        {{- raise_exception('After the optional system message, conversation roles must alternate user/assistant/user/assistant/...') }}
    {%- endif %}
    {%- if message['role'] == 'user' %}
        {%- if loop.first and system_message is defined %}
            {{- ' [INST] ' + system_message + '\\n\\n' + message['content'] + ' [/INST]' }}
        {%- else %}
            {{- ' [INST] ' + message['content'] + ' [/INST]' }}
        {%- endif %}
    {%- elif message['role'] == 'assistant' %}
        {{- ' ' + message['content'] + eos_token}}
    {%- else %}
        {{- raise_exception('Only user and assistant roles are supported, with the exception of an initial optional system message!') }}
    {%- endif %}
{%- endfor %}
"""

LLAMA_2 = (
    "{% if messages[0]['role'] == 'system' %}{% set loop_messages = messages[1:] %}{% set system_message = "
    "messages[0]['content'] %}"
    "{% else %}{% set loop_messages = messages %}{% set system_message = false %}{% endif %}{% for message in "
        "loop_messages %}"
    "{% if (message['role'] == 'user') != (loop.index0 % 2 == 0) %}"
    "{{ raise_exception('Conversation roles must alternate user/assistant/user/assistant/...') }}{% endif %}"
    "{% if loop.index0 == 0 and system_message != false %}"
    "{% set content = '<<SYS>>\\n' + system_message + '\\n<</SYS>>\\n\\n' + message['content'] %}"
    "{% else %}{% set content = message['content'] %}{% endif %}"
    "{% if message['role'] == 'user' %}{{ bos_token + '[INST] ' + content.strip() + ' [/INST]' }}"
    "{% elif message['role'] == 'assistant' %}{{ ' '  + content.strip() + ' ' + eos_token }}{% endif %}{% endfor %}"
)

GEMMA = (
    "{{ bos_token }}{% if messages[0]['role'] == 'system' %}{{ raise_exception('System role not supported') }}{% "
    "endif %}"
    "{% for message in messages %}{% if (message['role'] == 'user') != (loop.index0 % 2 == 0) %}"
    "{{ raise_exception('Conversation roles must alternate user/assistant/user/assistant/...') }}{% endif %}"
    "{% if (message['role'] == 'assistant') %}{% set role = 'model' %}{% else %}{% set role = message['role'] %}{% "
        "endif %}"
    "{{ '<start_of_turn>' + role + '\n' + message['content'] | trim + '<end_of_turn>\n' }}{% endfor %}"
    "{% if add_generation_prompt %}{{'<start_of_turn>model\n'}}{% endif %}"
)

PHI_3 = (
    "{% for message in messages %}{% if message['role'] == 'system' %}{{'<|system|>\n' + message['content'] + "
    "'<|end|>\n'}}"
    "{% elif message['role'] == 'user' %}{{'<|user|>\n' + message['content'] + '<|end|>\n'}}"
    "{% elif message['role'] == 'assistant' %}{{'<|assistant|>\n' + message['content'] + '<|end|>\n'}}{% endif %}{% "
        "endfor %}"
    "{% if add_generation_prompt %}{{ '<|assistant|>\n' }}{% else %}{{ eos_token }}{% endif %}"
)

ZEPHYR = (
    "{% for message in messages %}\n{% if message['role'] == 'user' %}\n{{ '<|user|>\n' + message['content'] + "
    "eos_token }}\n"
    "{% elif message['role'] == 'system' %}\n{{ '<|system|>\n' + message['content'] + eos_token }}\n"
    "{% elif message['role'] == 'assistant' %}\n{{ '<|assistant|>\n'  + message['content'] + eos_token }}\n{% endif "
        "%}\n"
    "{% if loop.last and add_generation_prompt %}\n{{ '<|assistant|>' }}\n{% endif %}\n{% endfor %}"
)

SMOLLM2 = (
    "{% for message in messages %}{% if loop.first and messages[0]['role'] != 'system' %}"
    "{{ '<|im_start|>system\nYou are a helpful AI assistant named SmolLM, trained by Hugging Face<|im_end|>\n' }}{% "
        "endif %}"
    "{{'<|im_start|>' + message['role'] + '\n' + message['content'] + '<|im_end|>' + '\n'}}{% endfor %}"
    "{% if add_generation_prompt %}{{ '<|im_start|>assistant\n' }}{% endif %}"
)

# what templates of larger models do beside: namespaces, macros, loops with breaks, filters, JSON, transformers' own
# block
TOUR = """{%- macro turn(role, text) -%}
[{{ role | upper }}] {{ text }}
{% endmacro -%}
{%- set ns = namespace(first=true, users=0) -%}
{{ messages | map(attribute='role') | join(',') }} {{ messages | length }} {{ tools is none }} {{ documents is none }}
    {% if unk_thing is not defined %}
no such thing
    {% endif %}
{% for message in messages if message.role != 'system' %}
  {%- if loop.index > 3 %}{% break %}{% endif %}
  {%- set ns.users = ns.users + (1 if message.role == 'user' else 0) %}
  {%- if message.role == 'assistant' %}
  {%- generation %}{{ turn(message['role'], message['content'].strip()) }}{% endgeneration %}
  {%- else %}
{{ turn(message['role'], message['content'].replace('e', 'E').split('\\n')[0]) }}
  {%- endif %}
{% else %}
nobody
{% endfor %}
{{ ns.users }} {{ true }} {{ none }} {{ 7 // 2 }} {{ 7 / 2 }} {{ 'x' ~ 1 ~ true }} {{ messages[-1].get('name', 'anon') }} {{ pad_token }}|
{{ messages[0] | tojson }} {{ messages[0].content | tojson }} {{ {'b': [1, 2.5, true, none], 'a': {}} | tojson }}
{{ {'b': [1, [], {'c': 'é<&>'}], 'a': 2} | tojson(indent=2) }}
{% for key, value in messages[0].items() %}{{ key }}={{ value | length }};{% endfor %}
{{ messages | selectattr('role', 'equalto', 'user') | list | length }} {{ 'a' in ['a', 'b'] }} {{ 'name' in messages[0] }} {{- '\\n' -}}
"""

# what Jinja2 makes of line ends before it reads anything else: in texts, in strings, in tags, at the end
CR_LF = (
    "{% for m in messages %}\r\n{{ m.role }}\r\n{{- 'a\r\nb' }}\r\n\r\n  {%- if loop.first %}\r\n!\r\n{% endif "
    "%}\r\n{{ m.content\r\n}}\r\n"
    "{% endfor %}\r\n{{ '<assistant>\r\n' if\r\nadd_generation_prompt }}\r\n"
)
CR = "{% for m in messages %}\r{{ m.role }}:\r\n\r{{ m.content }}\n\r{% endfor %}\r{# a\r\n b #}\r"

NEIGHBOURS = (
    "{% for m in messages %}{% if loop.previtem is defined and loop.previtem.role == m.role %}again {% endif %}"
    "{{ m.role }}({{ loop.previtem.role if loop.previtem is defined else 'nobody' }} < {{ (loop.nextitem | "
        "default({'role': 'nobody'})).role }})"
    "{% if loop.nextitem is not defined %}{{ eos_token }}{% elif loop.nextitem.role != m.role %};{% endif %}"
    "{% for part in m.content.split(' ') %}{{ loop.previtem }}{{ '-' if loop.previtem }}{% endfor %}{% endfor %}"
)

# every token in a role is a variable, a model's own roles too
ROLES = (
    "{{ bos_token }}{{ unk_token }}{{ sep_token }}{{ pad_token }}{{ cls_token }}{{ mask_token }}{{ image_token }}{{ "
    "tool_token }}"
    "{% for m in messages %}{{ cls_token ~ m.content ~ sep_token }}{% endfor %}{{ eos_token }}"
    "{{ additional_special_tokens is defined }}{{ extra_special_tokens is defined }}{{ audio_token is defined }}"
)

S2 = ("<s>", "</s>")
IM = (None, "<|im_end|>")
TEMPLATES = {
    "Llama-3": (LLAMA_3, ("<|begin_of_text|>", "<|eot_id|>")),
    "Llama-3.2": (LLAMA_3_2, ("<|begin_of_text|>", "<|eot_id|>")),
    "ChatML": (
        "{% for message in messages %}{{'<|im_start|>' + message['role'] + '\n' + message['content'] + '<|im_end|>' + "
        "'\n'}}"
        "{% endfor %}{% if add_generation_prompt %}{{ '<|im_start|>assistant\n' }}{% endif %}",
        ("<s>", "<|im_end|>"),
    ),
    "Qwen2.5": (QWEN_2_5, IM),
    "Qwen3": (QWEN_3, IM),
    "Mistral": (MISTRAL, S2),
    "Llama-2": (LLAMA_2, S2),
    "Gemma": (GEMMA, ("<bos>", "<eos>")),
    "Phi-3": (PHI_3, ("<s>", "<|endoftext|>")),
    "Zephyr and TinyLlama": (ZEPHYR, S2),
    "SmolLM2": (SMOLLM2, ("<|im_start|>", "<|im_end|>")),
    "a tour": (TOUR, (None, "</s>")),
    "lines that end in CR LF": (CR_LF, S2),
    "lines that end in CR": (CR, S2),
    "neighbours": (NEIGHBOURS, S2),
    "roles": (ROLES, S2),
}
# tokens in other roles, and special tokens without one
MORE = {
    "roles": {
        "unk_token": "<unk>", "pad_token": "<pad>", "cls_token": "[CLS]", "sep_token": "[SEP]",
        "image_token": "<image>",
        "extra_special_tokens": {"tool_token": "<tool>"}, "additional_special_tokens": ["<x>"],
    },
}

CASES = [
    [("user", "Who has the ball?")],
    [("user", "Who has the ball?"), ("assistant", "Tom has the ball."), ("user", "Where is he?")],
    [("system", "Be brief."), ("user", "Where is the kite?")],
    [("system", " Be brief.\n"), ("user", "\n one\n\n two "), ("assistant", " \"é\" <b> 🙂 \\n\n"), ("user",
    "{{ x }} {% if %}")],
    [("user", "1 + 1?"), ("assistant", "<think>\nhm\n</think>\n\n2"), ("user", "Sure?"), ("assistant",
    "<think>\nyes\n</think>\nYes.")],
    [("user", "Two in a row."), ("user", "Again.")],
    [("assistant", "I begin.")],
]

# times in UTC and formats, of which `strftime_now` makes a text
DATES = [(0, "%d %b %Y"), (1790000000, "%Y-%m-%d %H:%M:%S"), (951782400, "%A, %-d. %B %y, day %j"), (1704067199,
    "%a %e %I %p %%")]


def main(to):
    found = []
    for name, (template, (bos, eos)) in TEMPLATES.items():
        tokens = {"bos_token": bos, "eos_token": eos}
        given = {key: value for key, value in tokens.items() if value}
        given |= MORE.get(name, {})
        tokenizer = PreTrainedTokenizerFast(tokenizer_object=Tokenizer(models.BPE()), chat_template=template, **given)
        cases = []
        for case in CASES:
            messages = [{"role": role, "content": content} for role, content in case]
            told = {"messages": messages}
            for key, asks in [("text", False), ("asked", True)]:
                try:
                    told[key] = tokenizer.apply_chat_template(messages, tokenize=False, add_generation_prompt=asks)
                except jinja2.exceptions.TemplateError as error:
                    told["refused"] = str(error)
            cases.append(told)
        found.append({"name": name, "template": template, **tokens, **tokenizer.special_tokens_map, "cases": cases})
    with open(to, "w", encoding="utf-8") as file:
        dates = [[time, form, datetime.datetime.fromtimestamp(time, datetime.UTC).strftime(form)] for time,
            form in DATES]
        json.dump({"templates": found, "dates": dates}, file, ensure_ascii=False, indent=1)
        file.write("\n")


if __name__ == "__main__":
    main(*sys.argv[1:])
