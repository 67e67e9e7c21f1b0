"""Decides which cards of a diagnosis are new, and reports them on stderr and to a webhook."""

import logging
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from urllib.error import HTTPError
from urllib.parse import urlsplit
from urllib.request import Request, urlopen

import orjson

from logs_ui.recorder.diagnosis import Card, Report
from logs_ui.recorder.diagnosis.report import card_lines, card_values
from logs_ui.recorder.errors import SettingsError
from logs_ui.recorder.redaction import masked
from logs_ui.recorder.snapshot import error_line, plain, visible

logger = logging.getLogger("logs_ui")


@dataclass
class News:
    """Separates new cards from those that were reported. A card that went away and came back is new again, but not
    within `quiet_steps` of its last report.
    """

    quiet_steps: int
    _reported: dict[str, int] = field(default_factory=dict)  # step of the last report, by id
    _present: set[str] = field(default_factory=set)  # ids of cards that were reported and have not gone away since

    def of(self, cards: Sequence[Card], step: int) -> list[Card]:
        """Return the cards to report now."""
        self._present &= {card.id for card in cards}
        quiet = {card for card, reported in self._reported.items() if step - reported < self.quiet_steps}
        new = [card for card in cards if card.id not in self._present | quiet]
        self._present |= {card.id for card in new}
        self._reported |= {card.id: step for card in new}
        return new


def print_card(report: Report, card: Card, step: int) -> None:
    """Print a card in a few lines on stderr; `step` is the last one that the report covers."""
    lines = [f"logs-ui: step {step}: {visible(card.title)} [{card.id}]"]
    lines += [f"    {line.text}" for line in card_lines(report, card)]
    sys.stderr.write("\n".join([*lines, ""]))


@dataclass
class Webhook:
    """An address that cards are sent to. The first failure is logged, and none is raised. Raises SettingsError unless
    the address is http or https.
    """

    url: str
    headers: Mapping[str, str]
    timeout: float  # seconds, for the connection and for the answer
    failures: int = 0

    def __post_init__(self) -> None:
        if urlsplit(self.url).scheme not in {"http", "https"} or not urlsplit(self.url).hostname:
            # The message does not repeat the address, which may be a secret.
            raise SettingsError("webhook must be an http or https address, such as https://example.org/alerts.")

    def send(self, report: Report, card: Card, step: int) -> None:
        """Send `{"run", "step", "text", "card"}` as JSON by POST; values that look like secrets are masked."""
        values = {"run": report.run, "step": step, "text": f"{report.run}, step {step}: {card.title}"}
        try:
            body = orjson.dumps(masked(plain({**values, "card": card_values(card)})))
            headers = {"Content-Type": "application/json", "User-Agent": "logs-ui", **self.headers}
            request = Request(self.url, body, headers, method="POST")  # noqa: S310 - the scheme is checked above
            urlopen(request, timeout=self.timeout).close()  # noqa: S310
        except Exception as error:  # noqa: BLE001 - the training must not notice any
            self.failures += 1
            if self.failures > 1:
                return
            why = f"it answered {error.code}" if isinstance(error, HTTPError) else error_line(error)
            where = urlsplit(self.url).hostname  # without the path, which may be a secret
            logger.warning("logs-ui: the webhook at %s failed: %s. Later failures are not logged.", where, why)
