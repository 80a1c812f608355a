"""API keys in requests, where clients of both protocols put them."""

from __future__ import annotations

from collections.abc import Awaitable, Callable

from starlette.requests import Request

from mnmt_jax.serving.refused_error import RefusedError
from mnmt_jax.serving.request_fields import is_deepl, read_fields, text_field
from mnmt_jax.serving.users import KeyRefused, KeyRequired, Users

_SCHEMES = ("deepl-auth-key", "bearer")
_DEEPL = "Authorization failure: DeepL-Auth-Key is missing or not valid"
_MISSING = "the server requires an API key: missing api_key parameter"
_WRONG = "api_key: invalid API key"


def make_identify(users: Users) -> Callable[[Request], Awaitable[None]]:
    """Return a dependency of all routes that finds the user of a request.

    Every POST and all of DeepL's routes have a user; other routes are public.
    """

    async def identify(request: Request) -> None:
        if is_deepl(request.scope["path"]):
            key, missing, wrong = _header_key(request), (403, _DEEPL), (403, _DEEPL)
        elif request.method == "POST":
            key = _header_key(request) or text_field(await read_fields(request), "api_key")
            missing, wrong = (400, _MISSING), (403, _WRONG)
        else:
            return
        address = request.client.host if request.client else ""
        try:
            request.state.user = users.identify(key, address)
        except KeyRequired:
            raise RefusedError(*missing) from None
        except KeyRefused:
            raise RefusedError(*wrong) from None

    return identify


def _header_key(request: Request) -> str:
    scheme, _, key = request.headers.get("authorization", "").partition(" ")
    return key.strip() if scheme.lower() in _SCHEMES else ""
