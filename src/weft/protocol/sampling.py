"""Check sampling requests and their answers: messages to and from a model that may use tools.

Client and server use these functions. Each function returns a sentence about the first error, or None if there is no
error. The caller raises the exception.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import get_args

from weft.types.base import ROLES
from weft.types.interaction import (
    CreateMessageParams,
    CreateMessageResult,
    SamplingContent,
    SamplingMessage,
    ToolResultContent,
    ToolUseContent,
)

_BLOCKS = get_args(SamplingContent)


def fault_of_messages(messages: Sequence[SamplingMessage]) -> str | None:
    """Return a sentence about the first error in the messages of a sampling request, or None if they are valid.

    If a message uses tools, the next message must contain one result for each tool use, and nothing else.
    """
    open_uses: set[str] = set()
    for message in messages:
        if message.role not in ROLES:  # a program can set any role, because a struct does not check its arguments
            return "a message must have the role `user` or `assistant`."
        blocks = message.content if isinstance(message.content, list) else [message.content]
        if not all(isinstance(block, _BLOCKS) for block in blocks):
            return "the content of a message must be a block, such as TextContent(...), or a list of blocks."
        results = [block.tool_use_id for block in blocks if isinstance(block, ToolResultContent)]
        uses = [block.id for block in blocks if isinstance(block, ToolUseContent)]
        if results and len(results) != len(blocks):
            return "a message with tool results must not contain anything else."
        if set(results) != open_uses or len(set(results)) != len(results):
            return "each tool use needs exactly one result, in the next message."
        if (uses and message.role != "assistant") or (results and message.role != "user"):
            return "tool uses must have the role `assistant`, and tool results the role `user`."
        open_uses = set(uses)
    return "the last message uses tools, but no message with their results follows." if open_uses else None


def fault_of_answer(asked: CreateMessageParams, answer: CreateMessageResult) -> str | None:
    """Return a sentence about the first error in the answer of a model, or None if the answer is valid.

    An answer must have the role `assistant`, use only tools of the request, and contain no tool results.
    """
    if answer.role != "assistant":
        return "an answer must have the role `assistant`."
    is_forbidden = asked.tool_choice is not None and asked.tool_choice.mode == "none"
    offered = set[str]() if is_forbidden else {tool.name for tool in asked.tools or ()}
    for block in answer.content if isinstance(answer.content, list) else [answer.content]:
        if isinstance(block, ToolResultContent):
            return "an answer must not contain tool results, because the server runs its tools itself."
        if isinstance(block, ToolUseContent) and block.name not in offered:
            return "an answer may use only the tools that the request allows."
    return None
