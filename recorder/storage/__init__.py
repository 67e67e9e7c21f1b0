"""Where what is recorded is kept: databases, their schema, what is written to them, and the disk while they are away.
`database.py` is the door; what is asked of a database stands in `queries/`.
"""
