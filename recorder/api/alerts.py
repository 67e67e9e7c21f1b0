"""Which cards are news, and where they are told: on stderr, and by a webhook."""

import logging
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from urllib.error import HTTPError
from urllib.parse import urlsplit
from urllib.request import Request, urlopen

import orjson

from logs_ui.recorder.diagnosis import Card, Report
from logs_ui.recorder.diagnosis.report import card_lines, card_values, explaining, visible
from logs_ui.recorder.errors import SettingsError
from logs_ui.recorder.redaction import masked
from logs_ui.recorder.snapshot import error_line, plain

logger = logging.getLogger("logs_ui")


@dataclass
class News:
    """Tells cards that are new from those that were told. One that went away and came back is new again, but not within
    `quiet_steps` of the last time that it was told.
    """

    quiet_steps: int
    _told: dict[str, int] = field(default_factory=dict)  # step, by id
    _there: set[str] = field(default_factory=set)  # told, and not gone since

    def of(self, cards: Sequence[Card], step: int) -> list[Card]:
        """Those to tell now."""
        self._there &= {card.id for card in cards}
        new = [card for card in cards if card.id not in self._there and self._is_quiet_over(card.id, step)]
        self._there |= {card.id for card in new}
        self._told |= {card.id: step for card in new}
        return new

    def _is_quiet_over(self, card: str, step: int) -> bool:
        return card not in self._told or step - self._told[card] >= self.quiet_steps


def print_card(report: Report, card: Card, step: int) -> None:
    """In a few lines on stderr; `step`: the last that the report is made of."""
    said = [f"logs-ui: step {step}: {visible(card.title)} [{card.id}]"]
    said += [f"    {line.text}" for line in card_lines(card, explaining(report.cards, card))]
    sys.stderr.write("\n".join([*said, ""]))


@dataclass
class Webhook:
    """An address that is sent cards. Whatever goes wrong is logged once, and not raised.

    Attributes:
        url: http or https.
        headers: sent along, as `{"Authorization": "Bearer ..."}`.
        timeout: seconds, for the connection and for the answer.
        failures: how many could not be sent.

    Raises:
        SettingsError: the address is none.
    """

    url: str
    headers: Mapping[str, str]
    timeout: float
    failures: int = 0

    def __post_init__(self) -> None:
        if urlsplit(self.url).scheme not in {"http", "https"} or not urlsplit(self.url).hostname:
            raise SettingsError("webhook is no address of http or https.")  # and is not repeated: it may be a secret

    def send(self, report: Report, card: Card, step: int) -> None:
        """POSTs `{"run", "step", "text", "card"}` as JSON; what looks like a secret is masked in it."""
        said = {"run": report.run, "step": step, "text": f"{report.run}, step {step}: {card.title}"}
        try:
            self._post(orjson.dumps(masked(plain({**said, "card": card_values(card)}))))
        except Exception as error:  # noqa: BLE001 - of any kind: the training must not notice
            self._failed(error)

    def _post(self, body: bytes) -> None:
        headers = {"Content-Type": "application/json", "User-Agent": "logs-ui", **self.headers}
        request = Request(self.url, body, headers, method="POST")  # noqa: S310 - looked at above
        with urlopen(request, timeout=self.timeout):  # noqa: S310
            pass

    def _failed(self, error: Exception) -> None:
        """Never with the address, whose path may be a secret."""
        self.failures += 1
        if self.failures == 1:
            why = f"it answered {error.code}" if isinstance(error, HTTPError) else error_line(error)
            where = urlsplit(self.url).hostname
            logger.warning("logs-ui: the webhook at %s was not told: %s. This is not logged again.", where, why)
