"""Makes text of models, servers and environments safe for one line of a log or a terminal."""


def visible(said: object) -> str:
    """Returns the text in one line. Control characters, which a terminal would obey, become U+FFFD."""
    line = " ".join(str(said).split())
    return "".join(letter if letter.isprintable() else "\N{REPLACEMENT CHARACTER}" for letter in line)


def one_line(error: BaseException) -> str:
    """Returns an exception's type and message."""
    return visible(f"{type(error).__name__}: {error}")
