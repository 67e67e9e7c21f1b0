"""Builds one row, from its calls and tokens, as the columns, messages and actions that are stored.

Runs where rows are written: in the helper process, or in the writer's thread. Texts may contain anything, and the
user's functions may raise.
"""

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import orjson

from logs_ui.recorder.guard import guard
from logs_ui.recorder.labels import attributes_in, metrics_in, tags_in
from logs_ui.recorder.redaction import masked, without_secrets
from logs_ui.recorder.rows import chat_parser
from logs_ui.recorder.rows.actions import actions_of, images_in, note_empty_answers, scoring_entries
from logs_ui.recorder.rows.attribution import RowCalls
from logs_ui.recorder.rows.attribution.scoring_calls import ScoredRow
from logs_ui.recorder.rows.draft_batches import RowDraft
from logs_ui.recorder.rows.ends import acts_by_tools, end_of, ended_well
from logs_ui.recorder.rows.jobs import rollout_reward
from logs_ui.recorder.rows.messages import messages_of, preview, prompt_of
from logs_ui.recorder.rows.numbers import counts, cut, environment_rewards, moves_of, seconds
from logs_ui.recorder.rows.rollout_call import Edit, RolloutCall
from logs_ui.recorder.rows.text_facts import answers, call_facts, facts, prompt_key
from logs_ui.recorder.rows.tokens import joined_turns, unsampled, with_logprobs
from logs_ui.recorder.snapshot import one_line, snapshot, text
from logs_ui.recorder.storage.changes import RowChange
from logs_ui.recorder.storage.payload import Tokens, unpacked_content
from logs_ui.recorder.vocabulary import SentPrompt, Status, StopReason

_LOG_TAIL = 4_000  # bytes of the environment server's log that are stored with an error
_JOINED = (
    "These are the prompts of all {} turns, joined, and completion_ids are all answers without the environment's "
    "messages between them. No model call had this context, so training on it compares log-probs of different contexts."
)
_TOKENS = ("prompt_ids", "completion_ids", "logprobs", "mask")


def encoded(
    call: RolloutCall,
    index: int,
    row: RowCalls,
    tokens: Tokens | None,
    metadata_of: Callable[[int], Mapping[str, Any]],
    given_columns: Mapping[str, Any],
    spelling: chat_parser.Spelling | None = None,
    scored: ScoredRow | None = None,
) -> RowDraft | RowChange | None:
    """Build row `index`; return None if the user's `edit` stores nothing of it. A row that cannot be encoded or edited
    loses its text; other rows are not affected.

    `metadata_of` returns the metadata of a row by its index, and `given_columns` are columns that override those
    inferred from the calls. `spelling` has the texts of the call's rows, decoded together; None decodes this row's by
    themselves. `scored` has the calls of reward functions.
    """
    if index in call.left_out:
        return None
    with guard("encoding a rollout"):
        tokens = with_logprobs(row, tokens)
        if spelling is None and call.tokenizer is not None:
            spelling = chat_parser.Spelling(call.tokenizer)
        if scored is not None:
            row.notes += [note for note in scored.notes if note.kind not in {"error", "stop"}]
        columns, content = _row(call, index, row, tokens, dict(metadata_of(index)), given_columns, spelling)
        if scored is not None and scored.calls:  # after the figures, which are the rollout's alone
            content["actions"] += scoring_entries(scored)
            row.children += scored.environment_calls  # they have images, too
        edit = call.options.edit
        texts: list[str] | None = None
        if edit is not None:  # its figures are computed already: `edit` sees them, and may change them
            edited = _edit_row(edit, columns, content, tokens)
            if edited is None:
                call.left_out.add(index)
                return None
            columns, content, tokens = edited
        else:
            texts = answers(content["messages"])
        metrics = metrics_in(content["metadata"])
        if metrics:
            columns["metrics"] = metrics
        if attributes := attributes_in(content["metadata"]):
            columns["attributes"] = attributes
        change = call.change(index, columns)
        change.tags = () if columns["status"] == Status.RUNNING else tags_in(content["metadata"])
        change.images = images_in(row, content["actions"])
        return RowDraft(change, unpacked_content(content), tokens, texts)
    error = "logs-ui could not encode this rollout"
    return call.change(
        index, {"status": Status.OK, "stop_reason": StopReason.NOT_RECORDED, "error": error, **given_columns}
    )


def _row(
    call: RolloutCall, index: int, row: RowCalls, tokens: Tokens | None, metadata: dict[str, Any],
    given_columns: Mapping[str, Any], spelling: chat_parser.Spelling | None,
) -> tuple[dict[str, Any], dict[str, Any]]:  # fmt: skip
    """Return the row's columns, and its content: messages, actions, sampling and metadata."""
    messages, sent_prompt = messages_of(call, index, row, tokens, spelling)
    actions = actions_of(call, row, tokens, spelling)
    note_empty_answers(actions, messages, len(row.turns))
    moves = moves_of(row)
    by_tools = acts_by_tools(row, moves, actions, call.options)
    end = end_of(row, moves, actions, tokens, call.options, by_tools=by_tools)
    spoke = given_columns.get("stop_reason", end["stop_reason"]) == StopReason.STOP
    acted = ended_well(actions) if spoke and (row.environment_calls or call.options.parse) else actions
    finishes = [turn.sequence.finish for turn in row.turns]
    if call.options.edit is not None:  # it is to see all figures
        computed = facts(messages, acted, finishes, tokens, by_tools=by_tools)
    else:  # texts and tokens are measured when the batch is packed
        computed = call_facts(messages, acted, finishes, by_tools=by_tools, keyed=tokens is None)
    columns: dict[str, Any] = {
        **end,
        "message_count": len(messages),
        "turns": len(row.turns) or None,
        "preview": preview(messages),
        **(counted := counts(row, tokens)),
        **cut(row, counted),
        **unsampled(row, tokens),
        **environment_rewards(row, moves),
        "rollout_reward": rollout_reward(metadata),
        "sent_prompt": sent_prompt,
        "seconds": seconds(row),
        **computed,
    }
    joined = () if tokens is None else joined_turns(row, tokens)
    if joined:
        columns |= prompt_key(joined[0][0])
    if call.tasks[index]:
        columns["task"] = call.tasks[index]
    columns.update(given_columns)
    columns["error"] = columns["error"] and one_line(columns["error"])
    columns_of_dataset = call.columns  # read once: another thread may release them
    if columns_of_dataset is not None:
        metadata["dataset"] = masked(orjson.loads(columns_of_dataset[index]))
    if sent_prompt in {SentPrompt.EXTENDED, SentPrompt.OTHER}:
        metadata["dataset_prompt"] = masked(prompt_of(call, index))
    if row.evidence is not None:
        metadata["attribution"] = row.evidence
    if columns["status"] == Status.ERROR and call.options.server_log is not None:
        metadata["server_log"] = _tail(call.options.server_log)
    if row.notes:
        metadata |= _collect_reported(row)
    if joined:
        metadata["notes"] = {**metadata.get("notes", {}), "prompt_ids": _JOINED.format(len(joined))}
    content = {
        "messages": messages,
        "actions": actions,
        "sampling": masked(row.turns[-1].generation.sampling) if row.turns else {},
        "metadata": metadata,
    }
    return columns, content


def _edit_row(
    edit: Edit, columns: dict[str, Any], content: dict[str, Any], tokens: Tokens | None
) -> tuple[dict[str, Any], dict[str, Any], Tokens | None] | None:
    """Let the user's `edit` change a row; None if nothing of it is to be stored."""
    arrays = {name: None if tokens is None else getattr(tokens, name) for name in _TOKENS}
    edited = edit({**columns, **content, **arrays})
    if edited is None:
        return None
    ids = edited["prompt_ids"], edited["completion_ids"]
    edited_tokens = (
        None if tokens is None or any(array is None for array in ids) else Tokens(*(edited[n] for n in _TOKENS))
    )
    written = snapshot({name: edited[name] for name in content})
    return {name: edited[name] for name in columns}, orjson.loads(written), edited_tokens


def _collect_reported(row: RowCalls) -> dict[str, Any]:
    """Collect the tags and values that the rollout function itself reported for the row."""
    reported: dict[str, Any] = {}
    for note in row.notes:
        values = masked(orjson.loads(note.values))
        if note.kind == "tag":
            reported.setdefault("tags", []).extend(values)
        elif note.kind not in {"error", "stop"}:
            reported.setdefault(note.kind + "s", {}).update(values)
    return reported


def _tail(path: Path) -> str:
    try:
        with path.open("rb") as log:
            log.seek(max(0, path.stat().st_size - _LOG_TAIL))
            return without_secrets(text(log.read().decode(errors="replace")))
    except OSError as error:
        return f"The log could not be read: {error.strerror or error}"
