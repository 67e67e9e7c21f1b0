"""What models, servers and environments say, as a line for a log or a terminal."""


def visible(said: object) -> str:
    """Its text in one line, without what a terminal would obey: that is shown as U+FFFD."""
    line = " ".join(str(said).split())
    return "".join(letter if letter.isprintable() else "\N{REPLACEMENT CHARACTER}" for letter in line)
