"""What an exception says of why a rollout ended: told where it is caught, by its type, since what goes to the writer is
text, which may say anything.
"""

import asyncio
import re

from logs_ui.recorder.vocabulary import StopReason

# Of types: httpx's, requests' and openai's are no TimeoutError.
_TIMEOUT = re.compile(r"(?i:timed?_?out(error|exception|expired)?$)")
_REFUSAL = re.compile(  # what OpenEnv's clients make of it: on a socket, and of MCP over HTTP
    r"Server error: .*\(code: CAPACITY_REACHED\)"
    r"|Failed to create MCP session: Server at capacity: \d+/\d+ sessions active\. Cannot accept new connections\.",
    re.DOTALL,
)


def reason_of(error: BaseException) -> StopReason | None:
    """TIMEOUT, or AT_CAPACITY where an OpenEnv server had no session left; None of any other."""
    if isinstance(error, TimeoutError | asyncio.CancelledError):  # the latter is what a timeout does to a call
        return StopReason.TIMEOUT
    kinds = type(error).__mro__
    said = error.args[0] if type(error) is RuntimeError and error.args else None
    if (isinstance(said, str) and _REFUSAL.fullmatch(said)) or any(map(_is_openenvs_refusal, kinds)):
        return StopReason.AT_CAPACITY
    return StopReason.TIMEOUT if any(_TIMEOUT.search(kind.__name__) for kind in kinds) else None


def reason_of_text(error: str) -> StopReason | None:
    """As `reason_of`, of "Type: message" that somebody wrote himself."""
    kind, _, message = error.partition(": ")
    if _REFUSAL.fullmatch(message if kind == "RuntimeError" else error):
        return StopReason.AT_CAPACITY
    return StopReason.TIMEOUT if _TIMEOUT.search(kind) else None


def _is_openenvs_refusal(kind: type) -> bool:
    return kind.__name__ == "SessionCapacityError" and kind.__module__.startswith(("openenv.", "openenv_core."))
