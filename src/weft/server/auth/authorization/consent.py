"""The page on which a user logs in and consents. It says who asks, for what, and where the answer goes (ASEC-12)."""

from __future__ import annotations

from html import escape
from urllib.parse import urlsplit

from weft.protocol.hosts import is_loopback
from weft.server.auth.authorization.grants import Pending
from weft.server.auth.authorization.web import Answer

__all__ = ["consent_page", "error_page"]

_STYLE = (
    "body{font:1rem/1.5 system-ui,sans-serif;max-width:26rem;margin:4rem auto;padding:0 1rem;color:#222}"
    "h1{font-size:1.3rem}dt{color:#666;font-size:.85rem;margin-top:.6rem}dd{margin:0;word-break:break-all}"
    "label{display:block;margin-top:.8rem}input{width:100%;padding:.4rem;font:inherit;box-sizing:border-box}"
    "button{font:inherit;padding:.5rem 1.2rem;margin:1.2rem .6rem 0 0}.note{background:#fff3cd;padding:.5rem .8rem}"
)


def consent_page(pending: Pending, sealed: str, path: str, note: str | None = None, status: int = 200) -> Answer:
    """The page for a request that waits."""
    target = urlsplit(pending.redirect_uri)
    local = is_loopback(target.hostname or "")
    name = pending.client_name or pending.client_id
    notes = [note] if note else []
    if local:
        notes.append("The answer goes to a program on your own machine. Allow it only if you have just started it.")
    shown = {
        "Client": pending.client_id,
        "The answer goes to": pending.redirect_uri,
        "Access to": pending.resource,
        "May": ", ".join(pending.scopes) or "use it",
    }
    facts = "".join(f"<dt>{escape(key)}</dt><dd>{escape(value)}</dd>" for key, value in shown.items())
    warnings = "".join(f'<p class="note" role="alert">{escape(text)}</p>' for text in notes)
    body = (
        f"<h1>{escape(name)} asks for access</h1>{warnings}<dl>{facts}</dl>"
        f'<form method="post" action="{escape(path)}">'
        f'<input type="hidden" name="request" value="{escape(sealed)}">'
        '<label>Name <input name="username" autocomplete="username" autofocus></label>'
        '<label>Password <input name="password" type="password" autocomplete="current-password"></label>'
        '<button name="action" value="allow">Allow</button><button name="action" value="deny">Deny</button></form>'
    )
    return _page(status, name, body, f"'self' {target.scheme}://{target.netloc}", note or "")


def error_page(text: str, status: int = 400, *, way_back: str | None = None) -> Answer:
    """What is told to the user where there is no client that it could be told to, or none that anybody has vouched for:
    then with the `way_back` to it.
    """
    body = f"<h1>This is not possible</h1><p>{escape(text)}</p>"
    if way_back is not None:
        body += (
            "<p>Nobody here knows this client. Go on only if you do: "
            f'<a href="{escape(way_back)}" rel="noreferrer">back to {escape(urlsplit(way_back).netloc)}</a></p>'
        )
    return _page(status, "Not possible", body, "'none'", text)


def _page(status: int, title: str, body: str, form_action: str, reason: str) -> Answer:
    page = (
        '<!doctype html><html lang="en"><meta charset="utf-8"><meta name="viewport" content="width=device-width">'
        f"<title>{escape(title)}</title><style>{_STYLE}</style>{body}</html>"
    )
    policy = (
        "default-src 'none'; style-src 'unsafe-inline'; base-uri 'none'; frame-ancestors 'none'; "
        f"form-action {form_action}"  # browsers apply it to the redirect after the form as well
    )
    return Answer(
        status,
        page.encode(),
        [
            (b"content-type", b"text/html; charset=utf-8"),
            (b"content-security-policy", policy.encode()),
            (b"x-frame-options", b"DENY"),
            (b"x-content-type-options", b"nosniff"),
            (b"referrer-policy", b"same-origin"),  # with less, browsers do not say where the form comes from
            (b"cache-control", b"no-store"),
        ],
        reason=reason,
    )
