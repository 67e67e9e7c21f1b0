"""Secrets are not stored: what is named like one, and what stands in a text as URLs, headers and code hold them,
becomes `***`. Texts are hostile: each pattern reads one once, and looks no further than a bound.
"""

import functools
import re
from typing import Any

_MASK = "***"
_HUMP = re.compile(r"(?<=[a-z0-9])(?=[A-Z])|(?<=[A-Z])(?=[A-Z][a-z])")  # of camelCase
_LONGEST = 100  # characters of a name
_JSON = ("{", "[")
_DEEP = (dict, list, str)  # what something may be hidden in

# `tokenizer`, `max_tokens` and `token_ids` are none: a secret token stands alone, or at a name's end; nor is a text
# that a model reads or writes.
_SPELT = ("eos", "bos", "pad", "unk", "sep", "cls", "eot", "eom", "mask", "stop", "image", "video", "audio", "special")
_NAME = re.compile(
    r"(?i)(?:^|[^a-z0-9])(?:token" + "".join(f"(?<!{word}[_-]token)" for word in _SPELT) + r"|secrets?|passw(?:or)?ds?"
    r"|passphrase|pwd|credentials?|auth|authorization|bearer|cookies?|(?:api|access|private|secret|account)[_-]?keys?)$"
)
_IN_URL = re.compile(r"(?i)(?:^|[_.-])(?:key|sig|signature)$")  # of which nothing else is said there
_IN_SHELL = re.compile(r"_KEY$")

_PARAMETER = re.compile(r"[?&;]([\w.%~-]{1,100})=([^\s&;#\"'<>()\\]+)")
_PASSWORD = re.compile(r"(://[^/\s:@?#\"']{0,256}:)[^/\s?#\"']{1,256}@")
_USER = re.compile(r"(https?://)[^/\s:@?#\"']{1,256}@")  # most often a token
_ASSIGNED = re.compile(r"(?:[\"']\s?:|\s?=)\s?[rbf]?[\"']([^\"'\n]+)")
_VARIABLE = re.compile(r"\b([A-Z][A-Z0-9_]{2,100})=([^\s\"']+)")
_HEADER = re.compile(r"(?i)(\bauthorization[\"']?\s{0,3}[:=]\s{0,3}[\"']?(?:[a-z]{3,10}\s)?|\bbearer\s)[\w.~+/=-]{8,}")
_KEY = re.compile(  # as those who give them out begin them
    r"\b(?:hf_|sk-|ghp_|gho_|github_pat_|glpat-|xox[abp]-|AKIA|AIza)[A-Za-z0-9_-]{16,200}"
)
_BETWEEN_NAMES = re.compile(r"[^\w.-]")


def masked(value: Any) -> Any:
    """A copy of plain JSON values in which what is named like a secret is `***`, at any depth, and so are the secrets
    in URLs. Numbers that are called a token are not masked.
    """
    if isinstance(value, str):
        if value.startswith(_JSON):
            return without_secrets(value)
        return _without_urls_secrets(value) if "=" in value or "://" in value else value
    if isinstance(value, dict):
        return {
            key: _MASK
            if _is_secret(key[:_LONGEST]) and _may_hide(key, item)
            else masked(item)
            if isinstance(item, _DEEP)
            else item
            for key, item in value.items()
        }
    if isinstance(value, list):
        return [masked(item) if isinstance(item, _DEEP) else item for item in value]
    return value


def without_secrets(text: str) -> str:
    """A message, traceback or log without the secrets that are in URLs, in headers, and given to names in code."""
    text = _ASSIGNED.sub(_assigned, text)
    text = _VARIABLE.sub(_variable, text)
    small = text.lower()
    if "bearer" in small or "authorization" in small:
        text = _HEADER.sub(rf"\1{_MASK}", text)
    return _without_urls_secrets(text)


def without_keys(text: str) -> str:
    """Source code or an error without the same, and without what looks like a key wherever it stands."""
    return _KEY.sub(_MASK, without_secrets(text))


def _without_urls_secrets(text: str) -> str:
    if "://" in text:
        text = _USER.sub(rf"\1{_MASK}@", _PASSWORD.sub(rf"\1{_MASK}@", text))
    return _PARAMETER.sub(_parameter, text) if "=" in text else text


def _assigned(found: re.Match[str]) -> str:
    before = found.string[max(0, found.start() - _LONGEST) : found.start()]
    return _hidden(found, 1) if _is_secret(_BETWEEN_NAMES.split(before)[-1]) else found[0]


def _variable(found: re.Match[str]) -> str:
    return _hidden(found, 2) if _is_secret(found[1]) or _IN_SHELL.search(found[1]) else found[0]


def _parameter(found: re.Match[str]) -> str:
    return _hidden(found, 2) if _is_secret(found[1]) or _IN_URL.search(found[1]) else found[0]


def _hidden(found: re.Match[str], group: int) -> str:
    """The match without what the group, its last part, holds."""
    return found[0][: found.start(group) - found.start()] + _MASK


def _may_hide(name: str, item: Any) -> bool:
    if isinstance(item, int | float):
        return not isinstance(item, bool) and not name.lower().endswith("token")
    return bool(item)


@functools.lru_cache(maxsize=4096)
def _is_secret(name: str) -> bool:
    return bool(_NAME.search(_HUMP.sub("_", name)))
