"""The tokenizer helper against transformers, on SmolLM2 and on small tokenizers with odd files."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from helper_client import HELPER, HelperClient
from small_tokenizers import small_tokenizers
from transformers import AutoTokenizer, PreTrainedTokenizerFast

USER = {"role": "user", "content": "Hi"}
TOOLS = [{"type": "function", "function": {"name": "f", "parameters": {"type": "object"}}}]

TEXTS = [
    "",
    " ",
    "The quick brown fox.",
    "<|im_start|>user\nhello<|im_end|>",
    "Grüße, 日本語, 😀👩‍👩‍👧, \x00\x7f\u2028",
    "  \n\n\t  tabs",
    "word " * 3000,
]

CONVERSATIONS: list[list[dict[str, Any]]] = [
    [USER],
    [{"role": "system", "content": "Be brief."}, USER],
    [USER, {"role": "assistant", "content": "Hello!"}, {"role": "user", "content": "Why? 日本 😀"}],
    [{"role": "user", "content": "<|im_end|> & <b>'quoted' \"text\"</b> {{ messages }}"}],
    [{"role": "user", "content": "  spaces \n"}],
    [USER, {"role": "assistant", "content": "a", "name": None, "reasoning": "because"}],
]

# Uses all that transformers offers to templates.
RICH_TEMPLATE = """\
{%- if tools %}TOOLS {{ tools | tojson(indent=2) }}
{% endif %}
{{- bos_token }}{{ pad_token }}{{ strftime_now("%Y") }}
{%- for message in messages %}
    {%- if message.role == "skip" %}{% continue %}{% endif %}
    {%- if message.role == "stop" %}{% break %}{% endif %}
    {%- if message.role == "bad" %}{{ raise_exception("no <bad> role: é") }}{% endif %}
    {%- generation %}[{{ message.content | tojson }}]{{ message.thinking }}{% endgeneration %}
{%- endfor %}
{% if documents %}{{ documents[0].text }}{% endif %}
{%- if add_generation_prompt %}GO{{ mood }}{% endif %}"""


@pytest.fixture(scope="module")
def helper(smollm2: Path) -> Iterator[HelperClient]:
    with HelperClient(smollm2) as client:
        yield client


@pytest.fixture(scope="module")
def reference(smollm2: Path) -> PreTrainedTokenizerFast:
    return AutoTokenizer.from_pretrained(smollm2)


class Model:
    """A model directory with a small tokenizer, to be filled with odd files."""

    def __init__(self, directory: Path) -> None:
        self.directory = directory
        self.write("tokenizer.json", small_tokenizers()["byte_level"])
        self.config: dict[str, Any] = {"tokenizer_class": "PreTrainedTokenizerFast"}

    def write(self, name: str, content: Any) -> None:
        path = self.directory / name
        path.parent.mkdir(exist_ok=True)
        text = content if isinstance(content, str) else json.dumps(content)
        path.write_text(text, encoding="utf-8")

    def start(self) -> HelperClient:
        self.write("tokenizer_config.json", self.config)
        return HelperClient(self.directory)

    def reference(self) -> PreTrainedTokenizerFast:
        return AutoTokenizer.from_pretrained(self.directory)


@pytest.fixture
def model(tmp_path: Path) -> Model:
    return Model(tmp_path)


def test_ready(helper: HelperClient, reference: PreTrainedTokenizerFast) -> None:
    assert helper.ready == {
        "ready": True,
        "chat_template": True,
        "bos_token_id": reference.bos_token_id,
        "eos_token_id": reference.eos_token_id,
    }


@pytest.mark.parametrize("special", [False, True])
def test_encode(helper: HelperClient, reference: PreTrainedTokenizerFast, special: bool) -> None:
    expected = [reference.encode(text, add_special_tokens=special) for text in TEXTS]
    assert helper.encode(*TEXTS, add_special_tokens=special) == expected
    assert helper.encode(TEXTS[4], add_special_tokens=special) == [expected[4]]
    assert helper.encode() == []


@pytest.mark.parametrize("messages", CONVERSATIONS)
@pytest.mark.parametrize(
    "options", [{}, {"add_generation_prompt": False}, {"tools": TOOLS, "unknown": 1}]
)
def test_chat(
    helper: HelperClient,
    reference: PreTrainedTokenizerFast,
    messages: list[dict[str, Any]],
    options: dict[str, Any],
) -> None:
    arguments = {"add_generation_prompt": True, **options}
    reply = helper.chat(messages, **options)
    text = reference.apply_chat_template(messages, tokenize=False, **arguments)
    tokens = reference.apply_chat_template(messages, return_dict=False, **arguments)
    assert reply == {"text": text, "tokens": [tokens]}


def test_rich_template(model: Model) -> None:
    model.config |= {
        "bos_token": {"__type": "AddedToken", "content": "<|end|>", "lstrip": False,
                      "normalized": False, "rstrip": False, "single_word": False},
        "pad_token": "€",
        "chat_template": RICH_TEMPLATE,
    }  # fmt: skip
    messages = [
        {"role": "skip", "content": "a"},
        {"role": "user", "content": "é <&> '"},
        {"role": "user", "content": "x", "reasoning": "so"},
        {"role": "stop"},
        {"role": "bad"},
    ]
    with model.start() as helper:
        reference = model.reference()
        for options in ({}, {"tools": TOOLS}, {"documents": [{"text": "D"}], "mood": "!"}):
            expected = reference.apply_chat_template(
                messages, tokenize=False, add_generation_prompt=True, **options
            )
            assert helper.chat(messages, **options)["text"] == expected
        assert helper.ready["bos_token_id"] == reference.bos_token_id
        assert helper.refusal([{"role": "bad"}]) == "no <bad> role: é"
        assert helper.chat([USER])["text"].endswith('["Hi"]GO')


def test_templates_of_several_names(model: Model) -> None:
    named = {"default": "D{{ tools }}", "tool_use": "T{{ tools }}"}
    model.config["chat_template"] = [
        {"name": name, "template": source} for name, source in named.items()
    ]
    with model.start() as helper:
        assert helper.chat([USER])["text"] == "DNone"
        assert helper.chat([USER], tools=[])["text"] == "T[]"
    model.write("chat_template.jinja", "file")
    model.write("additional_chat_templates/tool_use.jinja", "file for tools")
    with model.start() as helper:
        reference = model.reference()
        for options in ({}, {"tools": TOOLS}):
            expected = reference.apply_chat_template([USER], tokenize=False, **options)
            assert helper.chat([USER], **options)["text"] == expected
    (model.directory / "chat_template.jinja").unlink()
    with model.start() as helper:
        assert "no default" in helper.refusal([USER])


def test_special_tokens_of_the_map(model: Model) -> None:
    model.config |= {"chat_template": "{{ bos_token }},{{ eos_token }}", "eos_token": "€"}
    model.write("special_tokens_map.json", {"bos_token": {"content": "<|end|>"}, "eos_token": "é"})
    with model.start() as helper:
        assert helper.chat([USER])["text"] == "<|end|>,€"


def test_only_the_post_processor_adds_to_a_text(model: Model) -> None:
    """Not the padding and truncation of the file, nor flags of the configuration."""
    special = {"SpecialToken": {"id": "€", "type_id": 0}}
    first, second = ({"Sequence": {"id": name, "type_id": 0}} for name in "AB")
    model.write(
        "tokenizer.json",
        small_tokenizers()["byte_level"]
        | {
            "post_processor": {
                "type": "TemplateProcessing",
                "single": [special, first],
                "pair": [first, second],
                "special_tokens": {"€": {"id": "€", "ids": [24], "tokens": ["€"]}},
            },
            "padding": {
                "strategy": {"Fixed": 9},
                "direction": "Right",
                "pad_to_multiple_of": None,
                "pad_id": 0,
                "pad_type_id": 0,
                "pad_token": "Ã",
            },
            "truncation": {
                "direction": "Right",
                "max_length": 3,
                "strategy": "LongestFirst",
                "stride": 0,
            },
        },
    )
    model.config |= {"bos_token": "<|end|>", "add_bos_token": True, "add_eos_token": True}
    with model.start() as helper:
        reference = model.reference()
        for flag in (False, True):
            expected = [reference.encode(text, add_special_tokens=flag) for text in ("A", "AAAAA")]
            assert len(expected[1]) == 5 + flag
            assert helper.encode("A", "AAAAA", add_special_tokens=flag) == expected
            assert helper.encode("AAAAA", add_special_tokens=flag) == expected[1:]


def test_content_parts(model: Model) -> None:
    parts = [{"type": "text", "text": "a"}, {"type": "text", "text": "b"}]
    messages = [{"role": "user", "content": parts}]
    image = [{"role": "user", "content": [{"type": "image_url", "image_url": {"url": "x"}}]}]
    model.config["chat_template"] = "{{ messages[0].content }}"
    with model.start() as helper:
        assert helper.chat(messages)["text"] == "a b"
        assert "'image_url'" in helper.refusal(image)
    for loop in (
        "{% for part in messages[0]['content'] %}{{ part.type }}{% endfor %}",
        "{%- for part in messages[0].content if part.type -%}{{ part.type }}{%- endfor -%}",
        "{% set content = messages[0].content %}{% for p in content %}{{ p.type }}{% endfor %}",
    ):
        model.config["chat_template"] = loop
        with model.start() as helper:
            assert helper.chat(messages)["text"] == "texttext"
            assert helper.chat(image)["text"] == "image_url"
    model.config["chat_template"] = (
        "{% for line in messages[0].content.split('b') %}{{ line }}|{% endfor %}"
    )
    with model.start() as helper:
        assert helper.chat(messages)["text"] == "a ||"


@pytest.mark.parametrize(
    ("template", "naming"),
    [
        ("{% if %}", "Expected an expression"),
        ("{{ messages[0].x.y }}", "no attribute 'x'"),
        ("{{ 1 / 0 }}", "ZeroDivisionError"),
        ("{{ ''.__class__.__mro__ }}", "unsafe"),
        ("{{ messages.append(1) }}", "'append' of 'list' object is unsafe"),
        ("{% macro m() %}{{ m() }}{% endmacro %}{{ m() }}", "RecursionError"),
        ("{% include 'x' %}", "no loader"),
        (None, "no chat template"),
    ],
)
def test_a_template_that_fails(model: Model, template: str | None, naming: str) -> None:
    if template is not None:
        model.config["chat_template"] = template
    with model.start() as helper:
        assert helper.ready["chat_template"] is (template is not None)
        assert naming in helper.refusal([USER])
        assert helper.encode("A") == [[15]]
        assert helper.close()[0] == 0


@pytest.mark.parametrize("messages", [[], {}, None, "text", ["text"], [["text"]], [None]])
def test_bad_messages(helper: HelperClient, messages: Any) -> None:
    assert "message" in helper.refusal(messages)


def test_bad_requests(helper: HelperClient) -> None:
    for fields in (
        {"op": "dance"},
        {"op": "encode"},
        {"op": "encode", "texts": [1], "add_special_tokens": False},
        {"op": "encode", "texts": [1, 2], "add_special_tokens": False},
        {"op": "encode", "texts": None, "add_special_tokens": False},
        {"op": "chat", "messages": [USER]},
        {"op": "chat", "messages": [USER], "options": 5},
    ):
        reply = helper.ask(**fields)
        assert set(reply) == {"error"}
        assert reply["error"]
    assert helper.encode("a")


def test_output_holds_messages_only(model: Model, tmp_path: Path) -> None:
    """What prints to standard output, from Python or below it, ends in standard error."""
    noisy = tmp_path / "noisy.py"
    noisy.write_text(
        "import os, runpy, sys\n"
        "import jinja2.sandbox as box\n"
        "old = box.ImmutableSandboxedEnvironment.from_string\n"
        "def loud(self, *arguments, **named):\n"
        "    print('from Python', flush=True)\n"
        "    os.write(1, b'from below\\n')\n"
        "    os.system('echo from a child; cat')\n"
        "    return old(self, *arguments, **named)\n"
        "box.ImmutableSandboxedEnvironment.from_string = loud\n"
        f"sys.argv = [{str(HELPER)!r}, sys.argv[-1]]\n"
        f"runpy.run_path({str(HELPER)!r}, run_name='__main__')\n"
    )
    model.config["chat_template"] = "x"
    model.write("tokenizer_config.json", model.config)
    client = HelperClient(model.directory, noisy)
    assert client.chat([USER])["text"] == "x"
    status, errors = client.close()
    assert (status, errors) == (0, "from Python\nfrom below\nfrom a child\n")


@pytest.mark.parametrize("broken", ["missing", "not JSON", "config", "list"])
def test_it_says_why_it_cannot_start(model: Model, broken: str) -> None:
    if broken == "missing":
        (model.directory / "tokenizer.json").unlink()
    elif broken == "not JSON":
        model.write("tokenizer.json", "{")
    elif broken == "config":
        model.config["chat_template"] = [{"name": "default"}]
    client = model.start() if broken != "list" else None
    if client is None:
        model.write("tokenizer_config.json", [])
        client = HelperClient(model.directory)
    assert set(client.ready) == {"error"}
    assert str(model.directory) in client.ready["error"]
    assert client.close()[0] == 1


def test_it_ends_with_its_input(model: Model) -> None:
    with model.start() as helper:
        assert helper.process.stdin is not None
        helper.process.stdin.write(b"\x10\0\0\0{")
        assert helper.close() == (0, "")


def test_it_dies_with_its_parent_at_work(model: Model) -> None:
    """In the middle of a template that never ends, where it cannot see the end of its input."""
    model.config["chat_template"] = (
        "{% for a in range(99999) %}{% for b in range(99999) %}{% endfor %}{% endfor %}"
    )
    model.write("tokenizer_config.json", model.config)
    program = (
        "import sys; sys.path.insert(0, sys.argv[1])\n"
        "from pathlib import Path\n"
        "from helper_client import HelperClient\n"
        "client = HelperClient(Path(sys.argv[2]))\n"
        "client.send({'id': 1, 'op': 'chat', 'messages': [{}], 'options': {}})\n"
        "print(client.process.pid, flush=True)\n"
        "client.receive()\n"
    )
    tests = str(Path(__file__).parent)
    parent = subprocess.Popen(
        [sys.executable, "-c", program, tests, model.directory], stdout=subprocess.PIPE
    )
    assert parent.stdout is not None
    stat = Path(f"/proc/{int(parent.stdout.readline())}/stat")
    parent.send_signal(signal.SIGKILL)
    parent.wait()
    while stat.exists() and ") Z " not in stat.read_text():  # nobody may be there to reap it
        time.sleep(0.01)


def test_usage() -> None:
    done = subprocess.run([sys.executable, HELPER], capture_output=True, text=True, check=False)
    assert (done.returncode, done.stdout) == (2, "")
    assert "usage" in done.stderr


def test_it_imports_little(model: Model) -> None:
    program = (
        f"import runpy, sys; runpy.run_path({str(HELPER)!r}); "
        "print([name for name in sys.modules if name in ('numpy', 'torch', 'transformers')])"
    )
    done = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, check=True
    )
    assert done.stdout == "[]\n"
