"""Subscriptions: what a client wants to hear of."""

from __future__ import annotations

from weft.types.base import NotificationParams, Struct
from weft.types.request import RequestParams

__all__ = ["AcknowledgedParams", "ListenParams", "SubscriptionFilter"]


class SubscriptionFilter(Struct):
    """Which changes: of lists, and of single resources by their URIs. What is left out is not sent."""

    tools_list_changed: bool | None = None
    prompts_list_changed: bool | None = None
    resources_list_changed: bool | None = None
    resource_subscriptions: list[str] | None = None


class ListenParams(RequestParams, kw_only=True):
    """A wish to hear of changes."""

    notifications: SubscriptionFilter


class AcknowledgedParams(NotificationParams, kw_only=True):
    """The part of the wish that is honoured."""

    notifications: SubscriptionFilter
