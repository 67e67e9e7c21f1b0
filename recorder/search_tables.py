"""The tables of the full-text index, a database of its own beside the recorder's: see `sidecars.py`."""

FORMAT = 1
"""Raised by one whenever what is indexed, or how, changes: an index of another format is made anew."""

TABLES = frozenset({"texts", "indexed_run", "source"})


def create_search() -> tuple[str, ...]:
    """The words of rollouts, by the rollout's id, without the texts themselves; how far each run is indexed; and of
    which database it is the index.
    """
    return (_TEXTS, _INDEXED_RUN, _SOURCE)


# unicode61 splits at whatever is neither letter nor digit. Contentless: the texts are in the payloads already.
_TEXTS = """
CREATE VIRTUAL TABLE IF NOT EXISTS search.texts
USING fts5(body, content='', tokenize='unicode61 remove_diacritics 2')
"""
_INDEXED_RUN = """
CREATE TABLE IF NOT EXISTS search.indexed_run (
    run_id INTEGER PRIMARY KEY,
    uid TEXT NOT NULL,
    changed INTEGER NOT NULL,  -- of the last row that was looked at, in the order of (changed, id)
    row_id INTEGER NOT NULL,   -- its id; the highest there can be where no row follows with the same `changed`
    texts INTEGER NOT NULL,    -- how many of the run's rollouts are indexed
    swept INTEGER NOT NULL     -- id of the last row without a reward that was looked at, once the run was over
)
"""
_SOURCE = """
CREATE TABLE IF NOT EXISTS search.source (
    id INTEGER PRIMARY KEY CHECK (id = 1),
    format INTEGER NOT NULL,
    created INTEGER NOT NULL,  -- when the database was made: another one has another moment
    version INTEGER NOT NULL   -- grows with each change of the index
)
"""
