"""The keys of a finding in JSON, as reports and webhooks have them."""

CARD_KEYS = {
    "id", "title", "cost", "than", "share", "since_step", "since_range", "half_step", "by_user", "evidence",
    "suggestion", "where",
}  # fmt: skip
