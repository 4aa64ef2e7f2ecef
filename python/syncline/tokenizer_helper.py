"""The helper process of syncline-engine: text to tokens, messages to prompts.

    python tokenizer_helper.py DIRECTORY

DIRECTORY is a Hugging Face model directory. The engine talks to the helper over standard input and
output, as src/text/tokenizer_process.h says: each message is a 4-byte little-endian length and that
many bytes of JSON. The helper ends when its input does. Needs `tokenizers` and `jinja2`.

Chat templates are rendered as transformers does: in jinja2's immutable sandbox, with
`raise_exception`, `strftime_now` and a `tojson` that does not escape HTML.
"""

from __future__ import annotations

import ctypes
import json
import os
import re
import signal
import struct
import sys
from collections.abc import Callable, Mapping
from datetime import datetime
from pathlib import Path
from typing import Any, BinaryIO

import jinja2
from jinja2.ext import Extension, loopcontrols
from jinja2.nodes import CallBlock, Node
from jinja2.parser import Parser
from jinja2.sandbox import ImmutableSandboxedEnvironment
from tokenizers import Tokenizer

MAX_MESSAGE_BYTES = 64 << 20
PR_SET_PDEATHSIG = 1

# Names that a message's reasoning is passed under; templates read the first or the second.
REASONING = ("reasoning_content", "thinking", "reasoning")

# A loop over a message's content: the template knows about content that is a list of parts.
CONTENT_LOOP = re.compile(
    r"\bfor\s+\w+\s+in\s+[\w.\[\]'\"]*\bcontent\b['\"\]]*\s*(?:[-+]?%\}|\bif\b|\brecursive\b)"
)


class RequestError(Exception):
    """The request makes no sense; the text is for who made it."""


class GenerationTag(Extension):
    """`{% generation %}` marks what the assistant said, for training: here it changes nothing."""

    tags = {"generation"}  # noqa: RUF012

    def parse(self, parser: Parser) -> Node:
        line = next(parser.stream).lineno
        body = parser.parse_statements(("name:endgeneration",), drop_needle=True)
        return CallBlock(self.call_method("_body"), [], [], body).set_lineno(line)

    def _body(self, caller: Callable[[], str]) -> str:
        return caller()


def raise_exception(message: str) -> None:
    raise jinja2.TemplateError(message)


def strftime_now(form: str) -> str:
    return datetime.now().strftime(form)


def tojson(
    value: Any,
    ensure_ascii: bool = False,
    indent: int | None = None,
    separators: tuple[str, str] | None = None,
    sort_keys: bool = False,
) -> str:
    return json.dumps(
        value, ensure_ascii=ensure_ascii, indent=indent, separators=separators, sort_keys=sort_keys
    )


def make_environment() -> ImmutableSandboxedEnvironment:
    environment = ImmutableSandboxedEnvironment(
        trim_blocks=True, lstrip_blocks=True, extensions=[GenerationTag, loopcontrols]
    )
    environment.filters["tojson"] = tojson
    environment.globals["raise_exception"] = raise_exception
    environment.globals["strftime_now"] = strftime_now
    return environment


def read_json(path: Path) -> dict[str, Any]:
    """The object in a file; an empty one if there is no such file."""
    if not path.exists():
        return {}
    value = json.loads(path.read_text(encoding="utf-8"))
    if not isinstance(value, dict):
        raise TypeError(f"{path}: not a JSON object")
    return value


def special_tokens(directory: Path, config: Mapping[str, Any]) -> dict[str, str]:
    """`bos_token` and the like → text. The files write a token as text or as an object."""
    found = {}
    for source in (read_json(directory / "special_tokens_map.json"), config):
        for name, value in source.items():
            text = value.get("content") if isinstance(value, dict) else value
            if name.endswith("_token") and isinstance(text, str):
                found[name] = text
    return found


def read_templates(directory: Path, config: Mapping[str, Any]) -> dict[str, str]:
    """Name → source; the nameless one is "default". Files win over tokenizer_config.json."""
    file = directory / "chat_template.jinja"
    named = sorted((directory / "additional_chat_templates").glob("*.jinja"))
    templates = {path.stem: path.read_text(encoding="utf-8") for path in named}
    if file.exists():
        templates["default"] = file.read_text(encoding="utf-8")
    written = config.get("chat_template")
    if templates or written is None:
        return templates
    if isinstance(written, str):
        return {"default": written}
    if isinstance(written, list):
        written = {entry["name"]: entry["template"] for entry in written}
    return {str(name): str(source) for name, source in written.items()}


def text_of_parts(content: Any) -> Any:
    """A list of parts as one text; anything else as it is."""
    if not isinstance(content, list):
        return content
    texts = []
    for part in content:
        kind = part.get("type") if isinstance(part, dict) else None
        if kind != "text" or not isinstance(part.get("text"), str):
            raise RequestError(f"content part of type {kind!r}: this model takes text only")
        texts.append(part["text"])
    return " ".join(texts)


def prepare_messages(messages: Any, *, keep_parts: bool) -> list[dict[str, Any]]:
    """Messages as templates want them: no nulls, and one name for reasoning."""
    if not isinstance(messages, list) or not messages:
        raise RequestError("messages must be a list of at least one message")
    prepared = []
    for message in messages:
        if not isinstance(message, dict):
            raise RequestError(f"a message must be an object, not {message!r:.100}")
        message = {key: value for key, value in message.items() if value is not None}
        reasoning = next((message[name] for name in REASONING if name in message), None)
        if reasoning is not None:
            message = {"thinking": reasoning, **message, "reasoning_content": reasoning}
        if not keep_parts and "content" in message:
            message["content"] = text_of_parts(message["content"])
        prepared.append(message)
    return prepared


class ChatTemplates:
    def __init__(self, sources: Mapping[str, str], tokens: Mapping[str, str]) -> None:
        self._sources = dict(sources)
        self._tokens = dict(tokens)
        self._environment = make_environment()
        self._compiled: dict[str, jinja2.Template] = {}

    def __bool__(self) -> bool:
        return bool(self._sources)

    def render(self, messages: Any, options: Mapping[str, Any]) -> str:
        name = self._choose(options)
        if name not in self._compiled:
            self._compiled[name] = self._environment.from_string(self._sources[name])
        keep_parts = CONTENT_LOOP.search(self._sources[name]) is not None
        defaults = {"tools": None, "documents": None, "add_generation_prompt": True}
        variables = {**self._tokens, **defaults, **options}
        variables["messages"] = prepare_messages(messages, keep_parts=keep_parts)
        return self._compiled[name].render(variables)

    def _choose(self, options: Mapping[str, Any]) -> str:
        if not self._sources:
            raise RequestError("the model has no chat template")
        if options.get("tools") is not None and "tool_use" in self._sources:
            return "tool_use"
        if "default" not in self._sources:
            raise RequestError(f"no default among the chat templates {sorted(self._sources)}")
        return "default"


class Helper:
    def __init__(self, directory: Path) -> None:
        config = read_json(directory / "tokenizer_config.json")
        tokens = special_tokens(directory, config)
        self._tokenizer = Tokenizer.from_file(str(directory / "tokenizer.json"))
        self._tokenizer.no_padding()
        self._tokenizer.no_truncation()
        self._templates = ChatTemplates(read_templates(directory, config), tokens)
        self._bos, self._eos = tokens.get("bos_token"), tokens.get("eos_token")

    def _id(self, token: str | None) -> int | None:
        return None if token is None else self._tokenizer.token_to_id(token)

    def ready(self) -> dict[str, Any]:
        return {
            "ready": True,
            "chat_template": bool(self._templates),
            "bos_token_id": self._id(self._bos),
            "eos_token_id": self._id(self._eos),
        }

    def answer(self, request: Any) -> dict[str, Any]:
        """The reply to a request; an error is a reply too."""
        number = request.get("id") if isinstance(request, dict) else None
        try:
            return {"id": number, **self._perform(request)}
        except (KeyboardInterrupt, SystemExit):
            raise
        except (RequestError, jinja2.TemplateError) as error:
            return {"id": number, "error": str(error)}
        # Whatever a template or a text brings about; a panic of `tokenizers` is no Exception.
        except BaseException as error:  # noqa: BLE001
            return {"id": number, "error": f"{type(error).__name__}: {error}"}

    def _perform(self, request: Any) -> dict[str, Any]:
        operation = request.get("op") if isinstance(request, dict) else None
        if operation == "encode":
            return {"tokens": self._encode(request["texts"], request["add_special_tokens"])}
        if operation == "chat":
            text = self._templates.render(request["messages"], request["options"])
            return {"text": text, "tokens": self._encode([text], False)}
        raise RequestError(f"unknown operation {operation!r}")

    def _encode(self, texts: list[str], add_special_tokens: bool) -> list[list[int]]:
        if len(texts) == 1:  # without the threads of a batch
            encoded = [self._tokenizer.encode(texts[0], add_special_tokens=add_special_tokens)]
        else:
            encoded = self._tokenizer.encode_batch(texts, add_special_tokens=add_special_tokens)
        return [one.ids for one in encoded]


def send(output: BinaryIO, message: Mapping[str, Any]) -> None:
    data = json.dumps(message, ensure_ascii=False).encode("utf-8", "replace")
    if len(data) > MAX_MESSAGE_BYTES:
        error = f"the reply has {len(data)} bytes, at most {MAX_MESSAGE_BYTES} are allowed"
        data = json.dumps({"id": message.get("id"), "error": error}).encode()
    output.write(struct.pack("<I", len(data)) + data)
    output.flush()


def receive(source: BinaryIO) -> Any:
    """The next message; None at the end of the input."""
    head = source.read(4)
    if len(head) < 4:
        return None
    (length,) = struct.unpack("<I", head)
    if length > MAX_MESSAGE_BYTES:
        raise ValueError(f"a message of {length} bytes, at most {MAX_MESSAGE_BYTES} are allowed")
    data = source.read(length)
    return json.loads(data) if len(data) == length else None


def take_streams() -> tuple[BinaryIO, BinaryIO]:
    """Input and output for messages alone: what else prints goes to standard error."""
    source, output = os.fdopen(os.dup(0), "rb"), os.fdopen(os.dup(1), "wb")
    with open(os.devnull, "rb") as nothing:
        os.dup2(nothing.fileno(), 0)
    os.dup2(2, 1)
    sys.stdout = sys.stderr
    return source, output


def die_with_parent() -> None:
    """Also in the middle of a request, when the end of the input would not be seen."""
    ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGKILL)


def main(arguments: list[str]) -> int:
    if len(arguments) != 1:
        print("usage: tokenizer_helper.py DIRECTORY", file=sys.stderr)
        return 2
    die_with_parent()
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # the parent decides when to end
    source, output = take_streams()
    try:
        helper = Helper(Path(arguments[0]))
    except Exception as error:  # noqa: BLE001
        send(output, {"error": f"{arguments[0]}: {error}"})
        return 1
    send(output, helper.ready())
    while (request := receive(source)) is not None:
        send(output, helper.answer(request))
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
