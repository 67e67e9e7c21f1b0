"""What is stored: the tables, and the words that their columns may hold.

`EvaluationRow` is the narrow header table: every column that is filtered, sorted or counted, and nothing else. What
only one open rollout needs (messages, token ids, ...) lies compressed in `RolloutPayload`.
"""

from typing import Any

from sqlalchemy import (
    JSON,
    BigInteger,
    Column,
    ForeignKey,
    Index,
    Integer,
    LargeBinary,
    MetaData,
    UniqueConstraint,
    text,
)
from sqlmodel import Field, SQLModel

from logs_ui.recorder.storage.dialects import suit
from logs_ui.recorder.vocabulary import RunState, Status

SCHEMA_VERSION = 1
"""Raised by one whenever a table changes after 0.1.0; before that the schema is edited in place."""

# SQLite gives only a plain INTEGER PRIMARY KEY its automatic row ids.
_BigKey = BigInteger().with_variant(Integer, "sqlite")


def _where(rows: str) -> dict[str, Any]:
    """Of an index that holds these alone."""
    return {"sqlite_where": text(rows), "postgresql_where": text(rows)}


_IDS_ONCE = {"sqlite_autoincrement": True}  # SQLite would give an id again once the last rows are deleted
_EMPTY = {"server_default": "{}"}
_COUNTER = {"server_default": "0"}  # written by others than those that made the row


class Table(SQLModel):
    """Base of the tables, which must not meet those of a user who has SQLModel tables in the same process."""

    metadata = MetaData()


class Run(Table, table=True):
    """One training job, over all of its processes."""

    __table_args__ = _IDS_ONCE

    id: int | None = Field(default=None, sa_column=Column(_BigKey, primary_key=True))
    uid: str = Field(unique=True)  # what users call its id: LOGS_UI_RUN, else time and a few random letters
    name: str  # the trainer's run_name where it was set, else the uid
    project: str | None = None  # what it belongs to, on one line, at most TAG_LENGTH characters; None where nobody said
    parent: str | None = None  # uid of the run whose checkpoint this one resumes
    output_dir: str | None = None  # where the trainer writes its checkpoints, absolute
    state: str = Field(default=RunState.RUNNING, sa_column_kwargs={"server_default": RunState.RUNNING})
    created: int = Field(sa_type=BigInteger)  # µs since the epoch, UTC, as every time here
    heartbeat: int = Field(sa_type=BigInteger)  # last sign of life of any of its processes
    finished: int | None = Field(default=None, sa_type=BigInteger)
    error: str | None = None  # what ended it, in one line; None where nothing did, or nobody knows
    traceback: str | None = None  # of that
    model: str | None = None  # name or path of the model that is trained
    max_steps: int | None = None  # optimizer steps planned; None where the trainer did not say
    num_generations: int | None = None  # completions in a group while training
    host: str | None = None  # of the first process
    pid: int | None = None  # of the first process
    git_commit: str | None = None  # of the working directory; None outside a repository
    git_dirty: bool | None = None  # whether tracked files differed from that commit
    tokenizer: str | None = None  # hash of its Tokenizer
    config: dict[str, Any] = Field(
        default_factory=dict, sa_type=JSON, sa_column_kwargs=_EMPTY
    )  # the trainer's arguments
    versions: dict[str, Any] = Field(
        default_factory=dict, sa_type=JSON, sa_column_kwargs=_EMPTY
    )  # python, logs-ui, trl, torch, ...
    diagnosis: dict[str, Any] | None = Field(
        default=None, sa_type=JSON
    )  # what its diagnosis is held against, as `diagnosis.Settings` has it; None where nothing was set
    changed: int = Field(
        default=0, sa_type=BigInteger, sa_column_kwargs=_COUNTER
    )  # last `changed` given to one of its rows
    recorder_errors: int = Field(
        default=0, sa_column_kwargs=_COUNTER
    )  # failures inside the recorder, which training never saw
    dropped: int = Field(default=0, sa_column_kwargs=_COUNTER)  # changes that a full queue or a broken disk cost
    dropped_payloads: int = Field(
        default=0, sa_column_kwargs=_COUNTER
    )  # rollouts that a full queue cost all but their columns
    pruned: int = Field(
        default=0, sa_column_kwargs=_COUNTER
    )  # rollouts that `logs-ui prune` left nothing of but their columns
    unattributed_calls: int = Field(
        default=0, sa_column_kwargs=_COUNTER
    )  # generations and environment calls that no row could be found for
    last_recorder_error: str | None = None


class EvaluationRow(Table, table=True):
    """One rollout: one completion of one prompt."""

    __tablename__ = "evaluation_row"
    __table_args__ = (
        UniqueConstraint("run_id", "uid"),
        Index("row_by_id", "run_id", "id"),
        Index("row_by_step", "run_id", "step", "eval_name", "mode", "status", "stop_reason", "reward", "group"),
        Index(
            "row_by_kind", "run_id", "task", "eval_name", "mode", "status", "stop_reason", "reward", "step", "created"
        ),
        Index("row_not_ok", "run_id", "status", "id", **_where("status != 'ok'")),
        Index("row_by_reward", "run_id", "reward", "id", "stop_reason"),
        Index("row_by_task", "run_id", "task", "id"),
        Index("row_by_group", "group"),
        Index("row_by_change", "run_id", "changed"),
        _IDS_ONCE,
    )

    id: int | None = Field(default=None, sa_column=Column(_BigKey, primary_key=True))
    run_id: int = Field(sa_column=Column(_BigKey, ForeignKey("run.id"), nullable=False))
    uid: str  # its own within the run; every later change of the row names it
    changed: int = Field(
        default=0, sa_type=BigInteger, sa_column_kwargs=_COUNTER
    )  # grows by one with each batch written to the run

    eval_name: str  # as given to record()
    mode: str  # a Mode
    step: int  # the step under which TRL logs the batch
    policy_step: int  # the trainer's global_step when it was generated
    epoch: float | None = None
    group: str  # completions of one prompt in one batch, over all ranks; unique in the database
    generation: int  # 0 .. num_generations - 1 within the group
    process: int  # rank
    task: str | None = None  # None until the trainer showed the dataset's columns
    model: str | None = None

    status: str = Field(default=Status.RUNNING, sa_column_kwargs={"server_default": Status.RUNNING})
    stop_reason: str | None = None  # a StopReason; None while it runs
    error: str | None = None  # one line, for the table; the traceback is in the metadata

    reward: float | None = None  # weighted sum over the reward functions; None when awaited, or when all returned None
    advantage: float | None = None  # as the trainer used it
    rollout_reward: float | None = None  # the reward that the rollout function returned
    env_reward_sum: float | None = None  # over the environment's steps
    env_reward_last: float | None = None  # of its last step that had one
    rewards: dict[str, float | None] | None = Field(
        default=None, sa_type=JSON
    )  # each reward function's own value; None where it gave none, or none that is finite
    odd_rewards: dict[str, str] | None = Field(
        default=None, sa_type=JSON
    )  # by reward function: "nan", "inf" or "-inf" where it returned that, which breaks a training; None without any
    reward_weights: dict[str, float] | None = Field(default=None, sa_type=JSON)

    message_count: int = Field(default=0, sa_column_kwargs=_COUNTER)
    turns: int | None = None  # generations seen; None where none was
    prompt_tokens: int | None = None
    completion_tokens: int | None = None  # sampled by the model
    env_tokens: int | None = None  # inserted into the completion by the environment (mask 0)

    created: int = Field(sa_type=BigInteger)  # the rollout function was called
    returned: int | None = Field(default=None, sa_type=BigInteger)  # it returned, or raised
    scored: int | None = Field(default=None, sa_type=BigInteger)  # rewards arrived; None = awaited still
    seconds: float | None = None  # from the first to the last of its own calls
    preview: str | None = None  # the model's last words, 120 characters
    metrics: dict[str, float | None] | None = Field(
        default=None, sa_type=JSON
    )  # what the rollout function measured, by name, None where that was not finite; None in all without any

    # What the diagnosis asks of a rollout, worked out once by the writer: see `diagnosis.facts`. None: not recorded.
    env_steps: int | None = None  # actions that were sent to the environment
    env_errors: int | None = None  # of them, those that it answered with an error
    parse_failures: int | None = None  # turns whose answer gave no action
    parse_streak: int | None = None  # most of them in a row
    parse_tail: int | None = None  # those at the end, in a row
    action_streak: int | None = None  # most equal actions in a row
    repeats: float | None = None  # share of the actions that were taken before at the same observation
    tool_calls: int | None = None  # in the model's messages
    compression: float | None = None  # how many times smaller zlib, or zstd below 5, makes its last 10,000 characters
    distinct_words: float | None = None  # of all its words; None below 30 words
    trigram_repeats: float | None = None  # share of its runs of three words that were there before; likewise
    truncated_turns: int | None = None  # generations that hit the token limit
    prompt_key: int | None = Field(default=None, sa_type=BigInteger)  # equal prompt ids have equal ones
    completion_key: int | None = Field(default=None, sa_type=BigInteger)  # equal completion ids have equal ones
    mean_logprob: float | None = None  # of the tokens that the model sampled, by the sampler
    first_action: str | None = None  # 120 characters
    last_action: str | None = None  # likewise
    staleness: int | None = None  # versions that the policy was ahead when an asynchronous trainer took it
    dropped: str | None = None  # why that then left it out: a Dropped

    pruned: int | None = Field(
        default=None, sa_type=BigInteger
    )  # when `logs-ui prune` took its messages and tokens; None where they are as they were recorded


class RowTag(Table, table=True):
    """A tag that a rollout function gave its row, once for each."""

    __tablename__ = "row_tag"
    __table_args__ = (Index("tag_by_row", "row_id"), {"sqlite_with_rowid": False})

    run_id: int = Field(sa_column=Column(_BigKey, ForeignKey("run.id"), primary_key=True))
    tag: str = Field(primary_key=True)  # at most TAG_LENGTH characters, on one line
    row_id: int = Field(sa_column=Column(_BigKey, ForeignKey("evaluation_row.id"), primary_key=True))


class RolloutPayload(Table, table=True):
    """What only an open rollout needs; encoded by `payload.py`."""

    __tablename__ = "rollout_payload"
    __table_args__ = (
        Index("payload_by_content_start", "content_start", **_where("content_start IS NOT NULL")),
        Index("payload_by_tokens_start", "tokens_start", **_where("tokens_start IS NOT NULL")),
    )

    row_id: int = Field(sa_column=Column(_BigKey, ForeignKey("evaluation_row.id"), primary_key=True))
    content_start: int | None = Field(default=None, sa_type=BigInteger, foreign_key="payload_start.id")
    tokens_start: int | None = Field(default=None, sa_type=BigInteger, foreign_key="payload_start.id")
    content: bytes | None = Field(default=None, sa_type=LargeBinary)  # messages, actions, sampling, metadata
    tokens: bytes | None = Field(default=None, sa_type=LargeBinary)  # ids, log-probs, mask


class PayloadStart(Table, table=True):
    """What payloads begin with, once for all of them: a prompt's messages, or its token ids."""

    __tablename__ = "payload_start"

    id: int = Field(sa_column=Column(BigInteger, primary_key=True, autoincrement=False))  # made of what is packed
    data: bytes = Field(sa_type=LargeBinary)  # packed as payloads are


class StepStatistics(Table, table=True):
    """Sums over one step's rollouts, kept exact by the writer, so that no page adds up a million rows."""

    __tablename__ = "step_statistics"
    __table_args__ = (Index("step_stale", "run_id", **_where("stale")),)

    run_id: int = Field(sa_column=Column(_BigKey, ForeignKey("run.id"), primary_key=True))
    mode: str = Field(primary_key=True)
    eval_name: str = Field(primary_key=True)
    step: int = Field(primary_key=True)
    rollouts: int
    scored: int  # of them have a reward
    reward_sum: float  # over those
    errors: int
    truncated: int  # stopped by length
    stale: bool = Field(
        default=True, sa_column_kwargs={"server_default": "1"}
    )  # whether its rows have changed since its StepDetails were made


class StepDetails(Table, table=True):
    """What costs more to find out of a step's rollouts than StepStatistics, and what cannot be kept as a sum. Made anew
    at most once a second while its rows change; readers work out for themselves what is missing or stale.
    """

    __tablename__ = "step_details"

    run_id: int = Field(sa_column=Column(_BigKey, ForeignKey("run.id"), primary_key=True))
    mode: str = Field(primary_key=True)
    eval_name: str = Field(primary_key=True)
    step: int = Field(primary_key=True)
    made: int = Field(sa_type=BigInteger)
    statuses: dict[str, int] = Field(sa_type=JSON)  # rollouts by Status
    stop_reasons: dict[str, int] = Field(sa_type=JSON)  # and by StopReason, those that have one
    reward_p10: float | None = None  # between the two nearest rewards, as numpy's; None where none has one
    reward_p90: float | None = None
    groups: int  # in which two rollouts or more have a reward
    dead_groups: int  # of them, those whose rewards differ by no more than 1e-6: nothing is learned from them
    rewards: dict[str, list[float | None]] = Field(
        sa_type=JSON
    )  # by reward function, see `step_sums.RewardSums`; a sum that is not finite is None
    tokens_known: int  # rollouts that have completion_tokens
    tokens_sum: int
    turns_known: int
    turns_sum: int
    seconds_known: int
    seconds_sum: float


class Scalar(Table, table=True):
    """One figure that the trainer logged at one step."""

    run_id: int = Field(sa_column=Column(_BigKey, ForeignKey("run.id"), primary_key=True))
    step: int = Field(primary_key=True)
    name: str = Field(primary_key=True)
    value: float | None = None  # None where the trainer logged NaN


class Tokenizer(Table, table=True):
    """A tokenizer, once for all runs that use it, so that the dashboard spells token ids without transformers."""

    hash: str = Field(primary_key=True)  # sha256 of the JSON
    data: bytes = Field(sa_type=LargeBinary)  # the `tokenizers` library's JSON, zstd


class Text(Table, table=True):
    """A text that runs are made of, once for all runs that share it."""

    hash: str = Field(primary_key=True)  # sha256 of its UTF-8
    data: bytes = Field(sa_type=LargeBinary)  # that, zstd


class RunSource(Table, table=True):
    """Something that a run is made of beside its arguments, and that tells it from another run."""

    __tablename__ = "run_source"

    run_id: int = Field(sa_column=Column(_BigKey, ForeignKey("run.id"), primary_key=True))
    kind: str = Field(primary_key=True)  # a SourceKind
    name: str = Field(primary_key=True)  # of the function, class, ...; empty where a run has one of the kind
    hash: str | None = Field(default=None, foreign_key="text.hash")  # of its Text; None where its name is all
    weight: float | None = None  # of a reward function


class Image(Table, table=True):
    """An image of an observation, once for all observations that show it."""

    hash: str = Field(primary_key=True)  # sha256 of the data
    media_type: str  # image/png, image/jpeg or image/webp
    width: int  # pixels
    height: int
    data: bytes = Field(sa_type=LargeBinary)


class WriterPosition(Table, table=True):
    """How far the writing of one process has come, kept in the transaction that writes: what is tried again, as from
    its spool, goes in once.
    """

    __tablename__ = "writer_position"

    writer: str = Field(primary_key=True)  # a process's own name, as its spool's file has it
    number: int = Field(sa_type=BigInteger)  # of the last of its entries that is in
    written: int = Field(sa_type=BigInteger)  # when that came in, in µs since 1970, by the database's clock


class SchemaVersion(Table, table=True):
    """One row: what this database was made by."""

    __tablename__ = "logs_ui_schema"

    version: int = Field(primary_key=True)  # number of the last migration that was applied; 1 before the first
    created: int = Field(sa_type=BigInteger)
    oldest_reader: int  # programs that know an older schema than this one cannot read it
    oldest_writer: int  # nor may such write to it; they stop, and say so
    migrated: int | None = Field(default=None, sa_type=BigInteger)  # when; None where it is as it was made


suit(Table.metadata)
