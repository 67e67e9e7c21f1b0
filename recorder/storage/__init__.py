"""Stores what is recorded: databases, their schema, writes, and the spool on disk for a database that is away."""
