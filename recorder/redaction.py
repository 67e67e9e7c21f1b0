"""Replaces secrets by `***`: values with a name like "api_key", and secrets in URLs, headers and code within texts.

Texts may be hostile: each pattern reads a text once, and looks ahead only up to a bound.
"""

import functools
import re
from typing import Any

_MASK = "***"
_HUMP = re.compile(r"(?<=[a-z0-9])(?=[A-Z])|(?<=[A-Z])(?=[A-Z][a-z])")  # of camelCase
_LONGEST = 100  # characters of a name
_JSON = ("{", "[")
_DEEP = (dict, list, str)  # types that may contain a secret

# `tokenizer`, `max_tokens` and `token_ids` are not secrets: a secret is named "token", or by a name that ends with it.
# Special tokens of a tokenizer (`eos_token`) are texts of the model.
_SPELT = ("eos", "bos", "pad", "unk", "sep", "cls", "eot", "eom", "mask", "stop", "image", "video", "audio", "special")
_NAME = re.compile(
    r"(?i)(?:^|[^a-z0-9])(?:token" + "".join(f"(?<!{word}[_-]token)" for word in _SPELT) + r"|secrets?|passw(?:or)?ds?"
    r"|passphrase|pwd|credentials?|auth|authorization|bearer|cookies?|(?:api|access|private|secret|account|wandb)[_-]?keys?)$"
)
_IN_URL = re.compile(r"(?i)(?:^|[_.-])(?:key|sig|signature)$")  # names that mean a secret only in a URL
_IN_SHELL = re.compile(r"_KEY$")

_PARAMETER = re.compile(r"[?&;]([\w.%~-]{1,100})=([^\s&;#\"'<>()\\]+)")
_PASSWORD = re.compile(r"(://[^/\s:@?#\"']{0,256}:)[^/\s?#\"']{1,256}@")
_USER = re.compile(r"(https?://)[^/\s:@?#\"']{1,256}@")  # a user without a password is most often a token
_ASSIGNED = re.compile(r"(?:[\"']\s?:|\s?=)\s?[rbf]?[\"']([^\"'\n]+)")
_VARIABLE = re.compile(r"\b([A-Z][A-Z0-9_]{2,100})=([^\s\"']+)")
_BARE = re.compile(r"(?<![\w-])([\w-]{3,100})\s?=\s?(?!None\b|True\b|False\b)([^\s\"'&;,=<>()\[\]{}]+)")
_ATTRIBUTE = re.compile(r"[^\W\d]\w*(?:\.[^\W\d]\w*)+$")
_HEADER = re.compile(r"(?i)(\bauthorization[\"']?\s{0,3}[:=]\s{0,3}[\"']?(?:[a-z]{3,10}\s)?|\bbearer\s)[\w.~+/=-]{8,}")
_KEY = re.compile(  # prefixes of keys of well-known services
    r"\b(?:hf_|sk-|ghp_|gho_|github_pat_|glpat-|xox[abp]-|AKIA|AIza)[A-Za-z0-9_-]{16,200}"
)
_BETWEEN_NAMES = re.compile(r"[^\w.-]")


def masked(value: Any) -> Any:
    """Copy plain JSON values, and replace values with a secret's name, at any depth, and secrets in URLs by `***`.
    A number that is named a token is not replaced.
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
    """Replace secrets in a message, traceback or log: in URLs, in headers, and assigned to names in code."""
    text = _ASSIGNED.sub(_assigned, text)
    text = _VARIABLE.sub(_variable, text)
    text = _BARE.sub(_bare, text)
    small = text.lower()
    if "bearer" in small or "authorization" in small:
        text = _HEADER.sub(rf"\1{_MASK}", text)
    return _without_urls_secrets(text)


def without_keys(text: str) -> str:
    """Do the same in source code or an error, and replace everything that looks like a key."""
    return _KEY.sub(_MASK, without_secrets(text))


def _without_urls_secrets(text: str) -> str:
    if "://" in text:
        text = _USER.sub(rf"\1{_MASK}@", _PASSWORD.sub(rf"\1{_MASK}@", text))
    return _PARAMETER.sub(_parameter, text) if "=" in text else text


def _assigned(match: re.Match[str]) -> str:
    before = match.string[max(0, match.start() - _LONGEST) : match.start()]
    return _hidden(match, 1) if _is_secret(_BETWEEN_NAMES.split(before)[-1]) else match[0]


def _variable(match: re.Match[str]) -> str:
    return _hidden(match, 2) if _is_secret(match[1]) or _IN_SHELL.search(match[1]) else match[0]


def _bare(match: re.Match[str]) -> str:
    """Hide a value without quotes, as in "password=hunter2", unless it is code: a name, an attribute, or a call."""
    name, value = match.groups()
    is_code = (
        name.lower() == value.lower() or _ATTRIBUTE.match(value) or match.string.startswith(("(", "["), match.end())
    )
    return match[0] if is_code or not _is_secret(name) else _hidden(match, 2)


def _parameter(match: re.Match[str]) -> str:
    return _hidden(match, 2) if _is_secret(match[1]) or _IN_URL.search(match[1]) else match[0]


def _hidden(match: re.Match[str], group: int) -> str:
    """Return the match with `***` in place of the group, which is its last part."""
    return match[0][: match.start(group) - match.start()] + _MASK


def _may_hide(name: str, item: Any) -> bool:
    if isinstance(item, int | float):
        return not isinstance(item, bool) and not name.lower().endswith("token")
    return bool(item)


@functools.lru_cache(maxsize=4096)
def _is_secret(name: str) -> bool:
    return bool(_NAME.search(_HUMP.sub("_", name)))
