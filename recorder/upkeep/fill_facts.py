"""Computes facts of rollouts that an earlier logs-ui stored without them, from their messages, actions and tokens."""

import os
from contextlib import suppress

from sqlalchemy import func, literal, update
from sqlmodel import col

from logs_ui.recorder import queries
from logs_ui.recorder.action_text import tool_of
from logs_ui.recorder.queries.filters.rollout_filter import RolloutFilter
from logs_ui.recorder.rows.text_facts import Facts, call_facts, facts
from logs_ui.recorder.storage.address import database_address
from logs_ui.recorder.storage.tables import Run, Table
from logs_ui.recorder.storage.writes import run_writes
from logs_ui.recorder.upkeep.small_transactions import Progress, Steady, as_it_is, unseen, writing
from logs_ui.recorder.vocabulary import Status, StopReason

_AT_ONCE = 128  # rollouts in one transaction


def fill_facts(db: str | os.PathLike[str] | None = None, *, progress: Progress = unseen) -> int:
    """Compute each fact of `text_facts` that is NULL and that the stored data shows exactly, in short transactions
    while trainings record. It can be interrupted at any moment; what is computed stays. Rollouts that run, or were
    pruned or imported, are left alone. Return how many rollouts got a fact. Raise DatabaseError if the database is
    missing, or cannot be read or written.
    """
    address, filled, done = database_address(db), 0, 0
    with as_it_is(address) as engine, writing(address) as steady:
        # An imported run lacks what its format does not show.
        summaries = [summary for summary in queries.all_runs(engine) if not summary.run.imported]
        for run_id in (summary.run.id or 0 for summary in summaries):
            for rollouts in queries.rollouts(engine, run_id, RolloutFilter(), chunk=_AT_ONCE):
                lacking = {rollout.row.id: lacked for rollout in rollouts if (lacked := _lacked(rollout))}
                if lacking:
                    _write(steady, run_id, lacking)
                filled, done = filled + len(lacking), done + len(rollouts)
                progress("computing facts", done, sum(summary.rollouts for summary in summaries))
    return filled


def _lacked(rollout: queries.Rollout) -> Facts:
    """Return the facts that the row lacks, except those that also depend on what is not stored."""
    row, messages, actions, tokens = rollout.row, rollout.messages, rollout.own_actions, rollout.tokens
    unclear = set[str]()
    if tokens is None and row.env_tokens is not None:  # they were lost, and keys are of ids
        unclear |= {"prompt_key", "completion_key"}
    if "prompt_ids" in (rollout.metadata.get("notes") or {}):  # those of all turns: the key is of the first prompt
        unclear |= {"prompt_key"}
    with suppress(Exception):  # `edit=` may have stored anything
        finishes = [(action.get("generation") or {}).get("finish") for action in actions]
        computed = facts(messages, actions, finishes, tokens)
        sent = [action["action"] for action in actions if action["action"] is not None]
        # Perhaps it could only act by tools, or its function said that the last answer ended it.
        if all(map(tool_of, sent)) or computed["tool_calls"] or row.stop_reason == StopReason.STOP:
            by_tools = call_facts(messages, actions, finishes, by_tools=True, keyed=False)
            unclear |= {name for name, value in by_tools.items() if value != computed[name]}
        if messages and row.status != Status.RUNNING:
            lacked = {name for name, value in computed.items() if value is not None and getattr(row, name) is None}
            return {name: computed[name] for name in lacked - unclear}
    return {}


def _write(steady: Steady, run_id: int, lacking: dict[int | None, Facts]) -> None:
    """Store facts by the row's id, except those that somebody has stored meanwhile."""
    row = Table.metadata.tables["evaluation_row"]
    of_run = update(Run).where(col(Run.id) == run_id).values(changed=col(Run.changed) + 1)
    with steady.piece() as connection:
        run_writes.take_runs(connection, [run_id])
        changed = connection.scalar(of_run.returning(col(Run.changed)))
        for row_id, lacked in lacking.items():
            values = {
                name: func.coalesce(row.c[name], literal(value, row.c[name].type)) for name, value in lacked.items()
            }
            connection.execute(update(row).where(row.c.id == row_id).values(changed=changed, **values))
