"""Defines the tables of the recorder's database.

`EvaluationRow` is the narrow table of rollouts: all columns that are filtered, sorted or counted, and nothing else.
What only an open rollout needs (messages, token ids, ...) is compressed in `RolloutPayload`.
"""

from typing import Any

import sqlalchemy as sa
from sqlmodel import Field, SQLModel

from logs_ui.recorder.storage.dialects import suit
from logs_ui.recorder.vocabulary import Lack, RunState, Status

# SQLite generates ids only for a plain INTEGER PRIMARY KEY.
_BigKey = sa.BigInteger().with_variant(sa.Integer, "sqlite")


def _where(rows: str) -> dict[str, Any]:
    """Return settings of an index that contains only these rows."""
    return {"sqlite_where": sa.text(rows), "postgresql_where": sa.text(rows)}


_IDS_ONCE = {"sqlite_autoincrement": True}  # else SQLite reuses ids once the last rows are deleted


def _counter(**settings: Any) -> Any:
    return Field(default=0, sa_column_kwargs={"server_default": "0"}, **settings)  # a later change writes it


def _json() -> Any:
    return Field(default=None, sa_type=sa.JSON)


def _json_dict() -> Any:
    return Field(default_factory=dict, sa_type=sa.JSON, sa_column_kwargs={"server_default": "{}"})


def _big() -> Any:
    return Field(default=None, sa_type=sa.BigInteger)


class Table(SQLModel):
    """Is the tables' base class, with metadata of its own: a user may have SQLModel tables in the same process."""

    metadata = sa.MetaData()


class Run(Table, table=True):
    """Describes one training job, over all of its processes."""

    __table_args__ = _IDS_ONCE

    id: int | None = Field(default=None, sa_column=sa.Column(_BigKey, primary_key=True))
    uid: str = Field(unique=True)  # its public id: LOGS_UI_RUN, else the time and a few random letters
    name: str  # the trainer's run_name where it was set, else the uid
    project: str | None = None  # one line of at most TAG_LENGTH characters; None if none was given
    parent: str | None = None  # uid of the run whose checkpoint this one resumes
    output_dir: str | None = None  # where the trainer writes its checkpoints, absolute
    state: str = Field(default=RunState.RUNNING, sa_column_kwargs={"server_default": RunState.RUNNING})
    created: int = Field(sa_type=sa.BigInteger)  # µs since the epoch, UTC, as every time here
    heartbeat: int = Field(sa_type=sa.BigInteger)  # last sign of life of any of its processes
    finished: int | None = _big()
    error: str | None = None  # the exception that ended it, in one line; None if there was none, or it is unknown
    traceback: str | None = None  # of that exception
    model: str | None = None  # name or path of the trained model
    max_steps: int | None = None  # optimizer steps planned; None if the trainer does not report it
    num_generations: int | None = None  # completions in a group while training
    host: str | None = None  # of the first process
    pid: int | None = None  # of the first process
    git_commit: str | None = None  # of the working directory; None outside of a repository
    git_dirty: bool | None = None  # whether tracked files differed from that commit
    tokenizer: str | None = None  # hash of its Tokenizer
    config: dict[str, Any] = _json_dict()  # the trainer's arguments
    versions: dict[str, Any] = _json_dict()  # python, logs-ui, trl, torch, ...
    diagnosis: dict[str, Any] | None = _json()  # the recorded `diagnosis.Settings`; None if none were set
    changed: int = _counter(sa_type=sa.BigInteger)  # the highest `changed` of its rows
    recorder_errors: int = _counter()  # failures inside the recorder, which the training does not notice
    dropped: int = _counter()  # changes lost to a full queue or a broken disk
    dropped_payloads: int = _counter()  # rollouts that lost their payload to a full queue
    pruned: int = _counter()  # rollouts whose payload `logs-ui prune` deleted
    unattributed_calls: int = _counter()  # generations and environment calls without a row
    unattributed_scoring: int = _counter()  # the same of reward functions, which no check looks at
    unattributed_errors: dict[str, int] | None = _json()  # how many of `unattributed_calls` raised what, in one line
    unseen_sampling: int | None = None  # rollouts that returned tokens although no call of a model was recorded
    last_recorder_error: str | None = None

    @property
    def imported(self) -> dict[str, Any]:
        """Return what is known of the files of an imported run: `format`, `path`, and what they lack; else nothing."""
        source = self.config.get("import")
        return source if isinstance(source, dict) and "format" in source else {}

    def lacks(self, data: Lack) -> bool:
        """Return True if the files of an imported run do not hold this."""
        return data in self.imported.get("lacks", ())

    def lacks_figure(self, figure: str) -> bool:
        """Return True if the files of an imported run do not hold what `errors`, `truncated` or `stop:REASON` count."""
        return (figure == "errors" and self.lacks(Lack.ERRORS)) or (
            (figure == "truncated" or figure.startswith("stop:")) and self.lacks(Lack.STOP_REASONS)
        )


class EvaluationRow(Table, table=True):
    """Describes one rollout: one completion of one prompt."""

    __tablename__ = "evaluation_row"
    __table_args__ = (
        sa.UniqueConstraint("run_id", "uid"),
        sa.Index("row_by_id", "run_id", "id"),
        sa.Index("row_by_step", "run_id", "step", "eval_name", "mode", "status", "stop_reason", "reward", "group"),
        sa.Index(
            "row_by_kind", "run_id", "task", "eval_name", "mode", "status", "stop_reason", "reward", "step", "created"
        ),
        sa.Index("row_not_ok", "run_id", "status", "id", **_where("status != 'ok'")),
        sa.Index("row_by_reward", "run_id", "reward", "id", "stop_reason"),
        sa.Index("row_by_task", "run_id", "task", "id"),
        sa.Index("row_by_group", "group"),
        sa.Index("row_by_change", "run_id", "changed"),
        _IDS_ONCE,
    )

    id: int | None = Field(default=None, sa_column=sa.Column(_BigKey, primary_key=True))
    run_id: int = Field(sa_column=sa.Column(_BigKey, sa.ForeignKey("run.id"), nullable=False))
    uid: str  # unique within the run; later changes of the row refer to it
    changed: int = _counter(sa_type=sa.BigInteger)  # number of the batch that wrote it last, counted per run

    eval_name: str  # as passed to record()
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

    reward: float | None = None  # weighted sum over the reward functions; None while awaited, or if all returned None
    advantage: float | None = None  # as the trainer used it
    rollout_reward: float | None = None  # the reward that the rollout function returned
    env_reward_sum: float | None = None  # over the environment's steps
    env_reward_last: float | None = None  # of its last step that had one
    rewards: dict[str, float | None] | None = _json()  # by function; None if it returned none, or none that is finite
    odd_rewards: dict[str, str] | None = _json()  # by function: "nan", "inf" or "-inf", which break a training
    reward_weights: dict[str, float] | None = _json()

    message_count: int = _counter()
    turns: int | None = None  # generations; None if none was recorded
    prompt_tokens: int | None = None
    completion_tokens: int | None = None  # sampled by the model
    env_tokens: int | None = None  # inserted into the completion by the environment (mask 0)
    unsampled_tokens: int | None = None  # of completion_tokens, those that no recorded generation sampled

    created: int = Field(sa_type=sa.BigInteger)  # when the rollout function was called
    returned: int | None = _big()  # when it returned, or raised
    scored: int | None = _big()  # when rewards arrived; None while awaited
    seconds: float | None = None  # from its first call to its last
    preview: str | None = None  # the beginning of the model's last message, 120 characters
    metrics: dict[str, float | None] | None = _json()  # by name, from the rollout function; None if not finite

    # Facts for the diagnosis, computed once when the row is written: see `rows/text_facts.py`. None: not recorded.
    env_steps: int | None = None  # actions that were sent to the environment
    env_errors: int | None = None  # actions and resets that failed, or made a call that failed
    parse_failures: int | None = None  # turns whose answer contained no action
    parse_streak: int | None = None  # most of them in a row
    parse_tail: int | None = None  # parse failures in a row at the end
    action_streak: int | None = None  # most equal actions in a row
    action_tail: int | None = None  # equal actions in a row at the end
    repeats: float | None = None  # share of actions taken before at the same observation, or that go round the same few
    tool_calls: int | None = None  # in the model's messages
    compression: float | None = None  # ratio for its last 10,000 characters, by zlib, or by zstd if below 5
    distinct_words: float | None = None  # of all its words; None below 30 words
    trigram_repeats: float | None = None  # share of its three-word sequences that occurred before; None below 30 words
    non_latin: float | None = None  # share of its answers' letters that are not Latin; None without letters
    truncated_turns: int | None = None  # generations that hit the token limit
    cut_tokens: int | None = None  # of the last of them
    cut_limit: int | None = None  # its token limit, if its sampling parameters have one
    no_room: int | None = None  # 1 where the last answer is whole, and the completion had no room for a tool's answer
    env_success: int | None = None  # 1 or 0 where the environment ended the episode and says how
    unsaid_actions: int | None = None  # actions that do not occur in the answer before them
    unsaid_action: str | None = None  # the most frequent of them, 120 characters
    observation_keys: str | None = None  # of the kinds of its observations, 4 characters each
    prompt_key: int | None = _big()  # hash of the prompt ids
    asked_key: int | None = _big()  # hash of the dataset's prompt that it answers, without what an environment showed
    completion_key: int | None = _big()  # hash of the completion ids
    mean_logprob: float | None = None  # of the sampled tokens, as the sampler reported them
    first_action: str | None = None  # 120 characters
    last_action: str | None = None  # 120 characters
    sent_prompt: str | None = None  # a SentPrompt: how far what the model was sent is the dataset's prompt
    handed: str | None = None  # a Handed: the form in which reward functions were handed its completion
    handed_key: int | None = _big()  # hash of the text that they were handed: see `snapshot.text_key`
    staleness: int | None = None  # policy versions between sampling and training, of an asynchronous trainer
    dropped: str | None = None  # a Dropped: why an asynchronous trainer left it out

    pruned: int | None = _big()  # when `logs-ui prune` deleted its messages and tokens
    # Last, so that SQLite reads it only where it is needed: it may be longer than all other columns together.
    attributes: dict[str, str | float] | None = (
        _json()
    )  # short dataset columns and metadata: see `labels.attributes_in`


class RowTag(Table, table=True):
    """Stores a tag of a row, from the rollout function; each tag once."""

    __tablename__ = "row_tag"
    __table_args__ = (sa.Index("tag_by_row", "row_id"), {"sqlite_with_rowid": False})

    run_id: int = Field(sa_column=sa.Column(_BigKey, sa.ForeignKey("run.id"), primary_key=True))
    tag: str = Field(primary_key=True)  # at most TAG_LENGTH characters, on one line
    row_id: int = Field(sa_column=sa.Column(_BigKey, sa.ForeignKey("evaluation_row.id"), primary_key=True))


class RolloutPayload(Table, table=True):
    """Stores messages and tokens of a rollout, encoded by `payload.py`; only an open rollout needs them."""

    __tablename__ = "rollout_payload"
    __table_args__ = (
        sa.Index("payload_by_content_start", "content_start", **_where("content_start IS NOT NULL")),
        sa.Index("payload_by_tokens_start", "tokens_start", **_where("tokens_start IS NOT NULL")),
    )

    row_id: int = Field(sa_column=sa.Column(_BigKey, sa.ForeignKey("evaluation_row.id"), primary_key=True))
    content_start: int | None = Field(default=None, sa_type=sa.BigInteger, foreign_key="payload_start.id")
    tokens_start: int | None = Field(default=None, sa_type=sa.BigInteger, foreign_key="payload_start.id")
    content: bytes | None = Field(default=None, sa_type=sa.LargeBinary)  # messages, actions, sampling, metadata
    tokens: bytes | None = Field(default=None, sa_type=sa.LargeBinary)  # ids, log-probs, mask


class PayloadStart(Table, table=True):
    """A beginning that several payloads share, stored once: a prompt's messages, or its token ids."""

    __tablename__ = "payload_start"

    id: int = Field(sa_column=sa.Column(sa.BigInteger, primary_key=True, autoincrement=False))  # hash of the data
    data: bytes = Field(sa_type=sa.LargeBinary)  # packed like a payload


class StepStatistics(Table, table=True):
    """Sums over one step's rollouts, updated with every write, so that no page adds up a million rows."""

    __tablename__ = "step_statistics"
    __table_args__ = (sa.Index("step_stale", "run_id", **_where("stale")),)

    run_id: int = Field(sa_column=sa.Column(_BigKey, sa.ForeignKey("run.id"), primary_key=True))
    mode: str = Field(primary_key=True)
    eval_name: str = Field(primary_key=True)
    step: int = Field(primary_key=True)
    rollouts: int
    scored: int  # rollouts with a reward
    reward_sum: float  # over those
    errors: int
    truncated: int  # stopped by length
    stale: bool = Field(default=True, sa_column_kwargs={"server_default": "1"})  # rows changed since its details


class StepDetails(Table, table=True):
    """Figures of a step that cost more than StepStatistics, or are no sums. Recomputed at most once a second while rows
    change; readers compute missing or stale ones themselves.
    """

    __tablename__ = "step_details"

    run_id: int = Field(sa_column=sa.Column(_BigKey, sa.ForeignKey("run.id"), primary_key=True))
    mode: str = Field(primary_key=True)
    eval_name: str = Field(primary_key=True)
    step: int = Field(primary_key=True)
    made: int = Field(sa_type=sa.BigInteger)
    statuses: dict[str, int] = Field(sa_type=sa.JSON)  # rollouts by Status
    stop_reasons: dict[str, int] = Field(sa_type=sa.JSON)  # rollouts by StopReason, if they have one
    reward_p10: float | None = None  # interpolated like numpy's; None if no rollout has a reward
    reward_p90: float | None = None
    groups: int  # with at least two rewards
    dead_groups: int  # of them, with rewards no more than 1e-6 apart: nothing is learned from them
    rewards: dict[str, list[float | None]] = Field(sa_type=sa.JSON)  # `RewardSums` by function; None if not finite
    tokens_known: int  # rollouts that have completion_tokens
    tokens_sum: int
    turns_known: int
    turns_sum: int
    seconds_known: int
    seconds_sum: float


class Scalar(Table, table=True):
    """One figure that the trainer logged at one step."""

    run_id: int = Field(sa_column=sa.Column(_BigKey, sa.ForeignKey("run.id"), primary_key=True))
    step: int = Field(primary_key=True)
    name: str = Field(primary_key=True)
    value: float | None = None  # None if the trainer logged NaN


class Tokenizer(Table, table=True):
    """A tokenizer, once for all runs that use it, so that the dashboard decodes token ids without transformers."""

    hash: str = Field(primary_key=True)  # sha256 of the JSON
    data: bytes = Field(sa_type=sa.LargeBinary)  # the `tokenizers` library's JSON, zstd


class Text(Table, table=True):
    """A source text of runs, such as code or a chat template, once for all runs that share it."""

    hash: str = Field(primary_key=True)  # sha256 of its UTF-8
    data: bytes = Field(sa_type=sa.LargeBinary)  # UTF-8, zstd


class RunSource(Table, table=True):
    """Stores a source of a run besides its arguments, such as a reward function; runs are compared by them."""

    __tablename__ = "run_source"

    run_id: int = Field(sa_column=sa.Column(_BigKey, sa.ForeignKey("run.id"), primary_key=True))
    kind: str = Field(primary_key=True)  # a SourceKind
    name: str = Field(primary_key=True)  # of the function, class, ...; empty if a run has only one of the kind
    hash: str | None = Field(default=None, foreign_key="text.hash")  # of its Text; None if only the name is known
    weight: float | None = None  # of a reward function


class Image(Table, table=True):
    """Stores an image in observations once."""

    hash: str = Field(primary_key=True)  # sha256 of the data
    media_type: str  # image/png, image/jpeg or image/webp
    width: int  # pixels
    height: int
    data: bytes = Field(sa_type=sa.LargeBinary)


class WriterPosition(Table, table=True):
    """The last entry of a process that was stored, written in the same transaction: so an entry that is tried again, as
    from a spool, is stored once.
    """

    __tablename__ = "writer_position"

    writer: str = Field(primary_key=True)  # unique name of a process, also in its spool's file name
    parcel: int = Field(sa_type=sa.BigInteger)  # the `EntryNumber` of its last stored entry
    process: int
    n: int
    written: int = Field(sa_type=sa.BigInteger)  # when it was stored, in µs since 1970, by the database's clock


class SchemaVersion(Table, table=True):
    """Stores, in one row, the schema of this database."""

    __tablename__ = "logs_ui_schema"

    version: int = Field(primary_key=True)  # number of the last migration that was applied; 1 before the first
    created: int = Field(sa_type=sa.BigInteger)
    oldest_reader: int  # programs that know only older schemas cannot read it
    oldest_writer: int  # programs that know only older schemas may not write it; they stop, and say so
    migrated: int | None = _big()  # when; None if never
    release: str | None = None  # version of the logs-ui that made it, or migrated it last; None if that did not say so


suit(Table.metadata)
