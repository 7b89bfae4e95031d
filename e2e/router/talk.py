"""The four dialects as a test's conversation sees them: chat messages in, chat messages out."""

from typing import Any

import orjson

from e2e.enginesim import template, tokenizer
from e2e.enginesim.api import chat, messages, responses

Message = dict[str, Any]


class Chat:
    """The words in which tests speak; the other dialects translate."""

    name = "chat"
    path = "/v1/chat/completions"
    needs_id = False

    def encode(self, body: Message) -> Message:
        """A request of this dialect from a chat request."""
        return body

    def twin(self, body: Message) -> tuple[str, Message]:
        """Path and body of a request that has the same prompt and reply, and can tell the reply's tokens."""
        return Chat.path, body

    def tokens(self, body: Message) -> list[int]:
        """The prompt that the engine makes of a chat request put in this dialect."""
        return chat.prompt_of(self.twin(body)[1])

    def whole(self, answer: Message) -> Message:
        """The reply of an answer, as a chat message without empty fields."""
        return tidy(answer["choices"][0]["message"])

    def stream(self, raw: bytes) -> Message:
        """The same of a stream."""
        message: Message = {"role": "assistant", "content": "", "reasoning": "", "tool_calls": []}
        for event in events(raw):
            for choice in event["choices"]:
                delta = choice["delta"]
                message["content"] += delta.get("content") or ""
                message["reasoning"] += delta.get("reasoning") or ""
                for call in delta.get("tool_calls") or ():
                    if call["index"] == len(message["tool_calls"]):
                        first = {"name": call["function"]["name"], "arguments": ""}
                        message["tool_calls"].append({"id": call["id"], "type": "function", "function": first})
                    arguments = call["function"].get("arguments") or ""
                    message["tool_calls"][call["index"]]["function"]["arguments"] += arguments
        return tidy(message)


class Completions(Chat):
    """One text; the test renders the messages itself."""

    name = "completions"
    path = "/v1/completions"
    needs_id = True

    def encode(self, body: Message) -> Message:
        rest = {k: v for k, v in body.items() if k not in ("messages", "tools", "tool_choice", "chat_template_kwargs")}
        return {**rest, "prompt": template.render(body["messages"], body.get("tools"), {})}

    def twin(self, body: Message) -> tuple[str, Message]:
        return self.path, self.encode(body)

    def tokens(self, body: Message) -> list[int]:
        return tokenizer.encode(self.encode(body)["prompt"])

    def whole(self, answer: Message) -> Message:
        return {"role": "assistant", "content": answer["choices"][0]["text"]}

    def stream(self, raw: bytes) -> Message:
        text = "".join(choice["text"] for event in events(raw) for choice in event["choices"])
        return {"role": "assistant", "content": text}


class Messages(Chat):
    """Anthropic's."""

    name = "messages"
    path = "/v1/messages"

    def encode(self, body: Message) -> Message:
        out = {k: v for k, v in body.items() if k not in ("messages", "tools", "tool_choice", "stop")}
        turns = body["messages"]
        if turns[0]["role"] == "system":
            out["system"] = [{"type": "text", "text": turns[0]["content"]}]
            turns = turns[1:]
        out["messages"] = [self._message(turn) for turn in turns]
        if "tools" in body:
            functions = [tool["function"] for tool in body["tools"]]
            out["tools"] = [{"name": f["name"], "input_schema": f["parameters"]} for f in functions]
            out["tool_choice"] = {"type": body.get("tool_choice", "auto")}
        if "stop" in body:
            out["stop_sequences"] = body["stop"]
        return out

    def _message(self, turn: Message) -> Message:
        content: list[Message] = []
        if turn["role"] == "tool":
            result = {"type": "tool_result", "tool_use_id": turn["tool_call_id"], "content": turn["content"]}
            return {"role": "user", "content": [result]}
        if isinstance(turn.get("content"), list):
            return {"role": "user", "content": [{"type": "image", "source": {}}]}
        if turn.get("reasoning"):
            content.append({"type": "thinking", "thinking": turn["reasoning"]})
        if turn.get("content"):
            content.append({"type": "text", "text": turn["content"]})
        for call in turn.get("tool_calls", ()):
            function = call["function"]
            arguments = orjson.loads(function["arguments"])
            content.append({"type": "tool_use", "id": call["id"], "name": function["name"], "input": arguments})
        return {"role": turn["role"], "content": content}

    def twin(self, body: Message) -> tuple[str, Message]:
        return Chat.path, messages.chat_body(self.encode(body))

    def whole(self, answer: Message) -> Message:
        return _from_blocks(answer["content"])

    def stream(self, raw: bytes) -> Message:
        blocks: list[Message] = []
        for event in events(raw):
            if event["type"] == "content_block_start":
                blocks.append({**event["content_block"], "json": ""})
            elif event["type"] == "content_block_delta":
                delta = event["delta"]
                name = {"text_delta": "text", "thinking_delta": "thinking", "input_json_delta": "json"}.get(
                    delta["type"]
                )
                if name is not None:
                    blocks[event["index"]][name] += delta["partial_json" if name == "json" else name]
        for block in blocks:
            if block["type"] == "tool_use":
                block["input"] = orjson.loads(block["json"])
        return _from_blocks(blocks)


class Responses(Chat):
    """OpenAI's items."""

    name = "responses"
    path = "/v1/responses"

    def encode(self, body: Message) -> Message:
        out = {k: v for k, v in body.items() if k not in ("messages", "tools", "max_tokens")}
        turns = body["messages"]
        if turns[0]["role"] == "system":
            out["instructions"] = turns[0]["content"]
            turns = turns[1:]
        out["max_output_tokens"] = body["max_tokens"]
        out["input"] = [item for turn in turns for item in self._items(turn)]
        if "tools" in body:
            out["tools"] = [{"type": "function", **tool["function"]} for tool in body["tools"]]
        return out

    def _items(self, turn: Message) -> list[Message]:
        if turn["role"] == "tool":
            return [{"type": "function_call_output", "call_id": turn["tool_call_id"], "output": turn["content"]}]
        items: list[Message] = []
        if isinstance(turn.get("content"), list):
            return [{"role": "user", "content": [{"type": "input_image"}]}]
        if turn.get("reasoning"):
            items.append({"type": "reasoning", "content": [{"type": "reasoning_text", "text": turn["reasoning"]}]})
        if turn.get("content"):
            items.append({"role": turn["role"], "content": turn["content"]})
        calls = turn.get("tool_calls", ())
        return items + [{"type": "function_call", "call_id": call["id"], **call["function"]} for call in calls]

    def twin(self, body: Message) -> tuple[str, Message]:
        return Chat.path, responses.chat_body(self.encode(body))

    def whole(self, answer: Message) -> Message:
        message: Message = {"role": "assistant", "content": "", "reasoning": "", "tool_calls": []}
        for item in answer["output"]:
            if item["type"] == "function_call":
                function = {"name": item["name"], "arguments": item["arguments"]}
                message["tool_calls"].append({"id": item["call_id"], "type": "function", "function": function})
            else:
                name = "content" if item["type"] == "message" else "reasoning"
                message[name] += "".join(part["text"] for part in item["content"])
        return tidy(message)

    def stream(self, raw: bytes) -> Message:
        (completed,) = (event for event in events(raw) if event["type"] == "response.completed")
        return self.whole(completed["response"])


DIALECTS = (Chat(), Completions(), Messages(), Responses())


def events(raw: bytes) -> list[Message]:
    """The events of a stream; fails on an error among them."""
    found = []
    for event in raw.split(b"\n\n"):
        data = event.rpartition(b"data: ")[2]
        if data and data != b"[DONE]":
            body = orjson.loads(data)
            assert "error" not in body, body
            found.append(body)
    return found


def tidy(message: Message) -> Message:
    """A message without its empty fields."""
    return {name: value for name, value in message.items() if value}


def essence(message: Message) -> Any:
    """What must be equal in two replies: ids of tool calls are random."""
    calls = [(c["function"]["name"], orjson.loads(c["function"]["arguments"])) for c in message.get("tool_calls", ())]
    return message.get("content", ""), message.get("reasoning", ""), calls


def _from_blocks(blocks: list[Message]) -> Message:
    message: Message = {"role": "assistant", "content": "", "reasoning": "", "tool_calls": []}
    for block in blocks:
        if block["type"] == "tool_use":
            function = {"name": block["name"], "arguments": orjson.dumps(block["input"]).decode()}
            message["tool_calls"].append({"id": block["id"], "type": "function", "function": function})
        else:
            name = "content" if block["type"] == "text" else "reasoning"
            message[name] += block.get("text") or block.get("thinking") or ""
    return tidy(message)
