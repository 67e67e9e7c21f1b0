"""Maps an exception to a `StopReason`. Done where it is caught, because only its text travels further."""

import asyncio
import re

from logs_ui.recorder.vocabulary import StopReason

# Names of exception classes: those of httpx, requests and openai are not subclasses of TimeoutError.
_TIMEOUT = re.compile(r"(?i:timed?_?out(error|exception|expired)?$)")
_REFUSAL = re.compile(  # the messages that OpenEnv's clients raise, over a socket and over MCP
    r"Server error: .*\(code: CAPACITY_REACHED\)"
    r"|Failed to create MCP session: Server at capacity: \d+/\d+ sessions active\. Cannot accept new connections\.",
    re.DOTALL,
)
_CONNECTIONS = ("aiohttp", "httpcore", "httpx", "requests", "urllib3", "websockets")  # packages
# A model that names a wrong file causes these, and no server does.
_OF_PATHS = (FileExistsError, FileNotFoundError, IsADirectoryError, NotADirectoryError, PermissionError)


def reason_of(error: BaseException) -> StopReason | None:
    """Return TIMEOUT, AT_CAPACITY if an OpenEnv server had no session left, or ENVIRONMENT_ERROR if a connection or the
    system failed; None for other exceptions: what a tool was asked may have caused them.
    """
    if isinstance(error, TimeoutError | asyncio.CancelledError):  # asyncio's timeouts cancel the call
        return StopReason.TIMEOUT
    kinds = type(error).__mro__
    # OpenEnv's clients raise a plain RuntimeError for it, which only its message tells from others.
    message = error.args[0] if type(error) is RuntimeError and error.args else None
    if (isinstance(message, str) and _REFUSAL.fullmatch(message)) or any(map(_is_openenvs_refusal, kinds)):
        return StopReason.AT_CAPACITY
    if any(_TIMEOUT.search(kind.__name__) for kind in kinds):
        return StopReason.TIMEOUT
    is_of_system = isinstance(error, OSError | EOFError) and not isinstance(error, _OF_PATHS)
    is_of_connection = any(kind.__module__.partition(".")[0] in _CONNECTIONS for kind in kinds)
    return StopReason.ENVIRONMENT_ERROR if is_of_system or is_of_connection else None


def reason_of_text(error: str) -> StopReason | None:
    """Do the same for an error that the user passed as text, "Type: message"."""
    kind, _, message = error.partition(": ")
    if _REFUSAL.fullmatch(message if kind == "RuntimeError" else error):
        return StopReason.AT_CAPACITY
    return StopReason.TIMEOUT if _TIMEOUT.search(kind) else None


def _is_openenvs_refusal(kind: type) -> bool:
    return kind.__name__ == "SessionCapacityError" and kind.__module__.startswith(("openenv.", "openenv_core."))
