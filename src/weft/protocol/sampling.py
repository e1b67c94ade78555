"""Check the messages of a conversation with a model that may use tools; both sides use these rules.

Each function returns a sentence about the first fault, or None; the caller chooses the error.
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
    """Return the fault of a conversation: each tool use needs its result in the next message, with nothing else."""
    open_uses: set[str] = set()
    for message in messages:
        if message.role not in ROLES:  # a struct does not check its arguments
            return "a message has the role `user` or `assistant`."
        blocks = message.content if isinstance(message.content, list) else [message.content]
        if not all(isinstance(block, _BLOCKS) for block in blocks):
            return "the content of a message is a block, such as TextContent(...), or a list of blocks."
        results = [block.tool_use_id for block in blocks if isinstance(block, ToolResultContent)]
        uses = [block.id for block in blocks if isinstance(block, ToolUseContent)]
        if results and len(results) != len(blocks):
            return "a message with tool results holds nothing but tool results."
        if set(results) != open_uses or len(set(results)) != len(results):
            return "each tool use needs its one result in the very next message."
        if (uses and message.role != "assistant") or (results and message.role != "user"):
            return "an assistant uses tools, and a user has their results."
        open_uses = set(uses)
    return "the last message uses tools, and none with their results follows." if open_uses else None


def fault_of_answer(asked: CreateMessageParams, answer: CreateMessageResult) -> str | None:
    """Return the fault of an answer: it is the assistant's, uses only offered tools, and has no tool results."""
    if answer.role != "assistant":
        return "an answer has the role `assistant`."
    is_forbidden = asked.tool_choice is not None and asked.tool_choice.mode == "none"
    offered = set[str]() if is_forbidden else {tool.name for tool in asked.tools or ()}
    for block in answer.content if isinstance(answer.content, list) else [answer.content]:
        if isinstance(block, ToolResultContent):
            return "an answer uses tools and has no results of them: the server runs its tools itself."
        if isinstance(block, ToolUseContent) and block.name not in offered:
            return "an answer uses no tools but those that the request allows."
    return None
