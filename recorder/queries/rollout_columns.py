"""Describes each column of a rollout once.

DataFrames, files, the filter language, the dashboard's table of rollouts and the tables in docs/pandas.md and
docs/filters.md come from `COLUMNS`.
"""

from collections.abc import Collection, Mapping
from dataclasses import dataclass
from enum import StrEnum
from typing import TypeVar

from logs_ui.recorder.vocabulary import Dropped, Handed, Mode, SentPrompt, Status, StopReason

_T = TypeVar("_T")


class Kind(StrEnum):
    """Names the type of a column, as the docs call it."""

    TEXT = "text"
    WHOLE = "whole number"
    MAYBE_WHOLE = "whole number or absent"
    NUMBER = "number"
    TRUE = "true or false"
    MAYBE_TRUE = "true, false or absent"
    TIME = "time, UTC"
    NESTED = "dicts and lists"
    IDS = "array of int32"
    LOGPROBS = "array of float32"
    MASK = "array of uint8"


@dataclass(frozen=True)
class Column:
    """Describes a column of a DataFrame or a file, and its meaning."""

    name: str  # also that of the attribute of EvaluationRow, if it is stored there
    kind: Kind
    meaning: str
    example: str = ""  # a term of the filter language; empty if filters do not know the column, or know another form
    title: str = ""  # its head in the dashboard's table; empty if the table does not offer it
    width: int = 84  # there, in pixels
    label: str = ""  # its name in the dashboard's list of columns, if the title is too short for it
    field: str = ""  # its name in filters, if it is another one
    words: type[StrEnum] | None = None  # all possible values; None if they are not known beforehand
    optional: bool = False  # True for a text that a rollout may lack; the other kinds say it themselves


COLUMNS = (
    Column("run", Kind.TEXT, "the run's id"),
    Column("id", Kind.WHOLE, "the rollout's, as in the dashboard's addresses", "id:17", "ID", 76),
    Column("project", Kind.TEXT, "the run's project; absent without one"),
    Column("eval_name", Kind.TEXT, "as given to `record()`", "eval:guess", "Eval", 130, field="eval"),
    Column("mode", Kind.TEXT, "training or evaluation", "mode:eval", "Mode", 60, words=Mode),
    Column("step", Kind.WHOLE, "the optimizer step under which the trainer logs the batch", "step:100..200",
           "Step", 50),
    Column("policy_step", Kind.WHOLE, "the trainer's `global_step` when it was generated", "policy_step>=100",
           "Policy", 64, "Policy step"),
    Column("epoch", Kind.NUMBER, "how far in the dataset training was", "epoch<1", "Epoch", 66),
    Column("group", Kind.TEXT, "the same for all completions of one prompt in one batch", "group:23"),
    Column("generation", Kind.WHOLE, "which completion of its group, from 0", "generation:0", "Gen", 44, "Generation"),
    Column("process", Kind.WHOLE, "rank of the process that made it", "process:0", "Rank", 50),
    Column("task", Kind.TEXT, "what the dataset calls the prompt's task", 'task:"click-test"', "Task", 256,
           optional=True),
    Column("model", Kind.TEXT, "name or path of the model that answered", "model:Qwen/Qwen3-0.6B", "Model", 170,
           optional=True),
    Column("status", Kind.TEXT, "whether it came to an end", "status:error,aborted", "Status", 106, words=Status),
    Column("stop_reason", Kind.TEXT, "why it ended; absent while it runs", "stop:length", "Stop", 100, "Stop reason",
           field="stop", words=StopReason, optional=True),
    Column("error", Kind.TEXT, "one line; the traceback is in `metadata`"),
    Column("reward", Kind.NUMBER, "weighted sum over the reward functions", "reward<0.2", "Reward", 70),
    Column("advantage", Kind.NUMBER, "the advantage that the trainer used", "advantage>1", "Adv.", 66, "Advantage"),
    Column("rollout_reward", Kind.NUMBER, "the reward that the rollout function returned", "rollout_reward:none",
           "Returned", label="Returned reward"),
    Column("env_reward_sum", Kind.NUMBER, "sum of the rewards of the environment's steps", "env_reward_sum>0",
           "Env sum", label="Env reward, sum"),
    Column("env_reward_last", Kind.NUMBER, "reward of the environment's last step that had one", "env_reward_last:1",
           "Env last", label="Env reward, last"),
    Column("rewards", Kind.NESTED, "each reward function's own value, by name"),
    Column("odd_rewards", Kind.NESTED, "`nan`, `inf` or `-inf` by reward function, where one returned that; else None"),
    Column("reward_weights", Kind.NESTED, "each reward function's weight, by name"),
    Column("metrics", Kind.NESTED, "what the rollout function measured, by name; None without any"),
    Column("attributes", Kind.NESTED, "short dataset columns and metadata by name: texts of at most 120 characters, "
           "numbers, booleans; None without any"),
    Column("tags", Kind.NESTED, "a list: the rollout function's and people's, in alphabetical order"),
    Column("starred", Kind.TRUE, "True if somebody starred it in the dashboard"),
    Column("note", Kind.TEXT, "the note that somebody wrote in the dashboard"),
    Column("staleness", Kind.MAYBE_WHOLE, "policy versions between sampling and asynchronous training", "staleness>1"),
    Column("dropped", Kind.TEXT, "why a trainer left out at least a part of it", "dropped:stale",
           words=Dropped, optional=True),
    Column("sent_prompt", Kind.TEXT,
           "whether the model was sent the dataset's prompt, that and more (such as tools, which the chat template "
           "writes), or another one; absent if not known",
           "sent_prompt:other", label="Sent prompt", words=SentPrompt, optional=True),
    Column("handed", Kind.TEXT,
           "whether reward functions were handed one text of all that was sampled, or messages; absent if not known",
           "handed:messages", words=Handed, optional=True),
    Column("handed_key", Kind.MAYBE_WHOLE, "hash of the text that reward functions were handed"),
    Column("env_steps", Kind.MAYBE_WHOLE, "actions that were sent to the environment", "env_steps:0"),
    Column("env_errors", Kind.MAYBE_WHOLE, "actions and resets that failed, or that made a call that failed",
           "env_errors>0"),
    Column("tool_calls", Kind.MAYBE_WHOLE, "tool calls in the model's messages", "tool_calls:0"),
    Column("first_action", Kind.TEXT, "the first action that was sent, 120 characters", 'first_action:"bash  ls"',
           optional=True),
    Column("last_action", Kind.TEXT, "the last action that was sent, 120 characters", "last_action:submit",
           optional=True),
    Column("action_streak", Kind.MAYBE_WHOLE, "most equal actions in a row", "action_streak>=3"),
    Column("action_tail", Kind.MAYBE_WHOLE, "equal actions in a row at the end", "action_tail>=3"),
    Column("repeats", Kind.NUMBER, "share of the actions that were taken before at the same observation, or that go "
           "round the same 2 to 4", "repeats>0.5"),
    Column("unsaid_actions", Kind.MAYBE_WHOLE, "actions that do not occur in the answer before them",
           "unsaid_actions>0"),
    Column("unsaid_action", Kind.TEXT, "the most frequent of them, 120 characters", 'unsaid_action:"noop"',
           optional=True),
    Column("observation_keys", Kind.TEXT, "4 characters for each kind of observation, by its first words without "
           "numbers; the most frequent first, and once more at the end if it is most of them; after a blank those of "
           "their last words"),
    Column("env_success", Kind.MAYBE_WHOLE,
           "1 or 0 if the environment ended the episode and its last observation says success or failure; else absent",
           "env_success:0"),
    Column("parse_failures", Kind.MAYBE_WHOLE, "turns whose answer gave no action", "parse_failures>0", "Unparsed", 76,
           "Parse failures"),
    Column("parse_streak", Kind.MAYBE_WHOLE, "most turns without an action in a row", "parse_streak>=3"),
    Column("parse_tail", Kind.MAYBE_WHOLE, "turns without an action in a row at the end", "parse_tail>0"),
    Column("truncated_turns", Kind.MAYBE_WHOLE, "generations that hit the token limit", "truncated_turns>0"),
    Column("cut_tokens", Kind.MAYBE_WHOLE, "tokens of the last of them", "cut_tokens<100"),
    Column("cut_limit", Kind.MAYBE_WHOLE, "its token limit, as its parameters have it", "cut_limit:64"),
    Column("no_room", Kind.MAYBE_WHOLE,
           "1 if its last answer is whole, and the completion had no room for a tool's answer to it; else 0",
           "no_room:1"),
    Column("compression", Kind.NUMBER, "how many times smaller zlib, or zstd below 5, makes its last 10,000 characters",
           "compression>10"),
    Column("distinct_words", Kind.NUMBER, "share of its words that are different; absent below 30 words",
           "distinct_words<0.25"),
    Column("trigram_repeats", Kind.NUMBER,
           "share of its three-word sequences that occurred before; absent below 30 words", "trigram_repeats>0.5"),
    Column("non_latin", Kind.NUMBER, "share of its answers' letters that are not Latin; absent without letters",
           "non_latin>0.2"),
    Column("mean_logprob", Kind.NUMBER, "mean log-prob of the tokens that the model sampled", "mean_logprob>-0.02"),
    Column("message_count", Kind.WHOLE, "number of messages", "messages>20", "Msgs", 54, "Messages", field="messages"),
    Column("turns", Kind.MAYBE_WHOLE, "how often the model was called", "turns>=8", "Turns", 50),
    Column("prompt_tokens", Kind.MAYBE_WHOLE, "length of the prompt", "prompt_tokens>1000", "Prompt", 66,
           "Prompt tokens"),
    Column("completion_tokens", Kind.MAYBE_WHOLE, "tokens that the model sampled", "completion_tokens>4000",
           "Tokens", 60),
    Column("env_tokens", Kind.MAYBE_WHOLE, "tokens that the environment put into the completion", "env_tokens>0",
           "Env tok.", 68, "Env tokens"),
    Column("unsampled_tokens", Kind.MAYBE_WHOLE,
           "of completion_tokens, those that no recorded generation sampled; absent without a recorded call",
           "unsampled_tokens>0"),
    Column("created", Kind.TIME, "when the rollout function was called", title="Began", width=168),
    Column("returned", Kind.TIME, "when it returned, or raised"),
    Column("scored", Kind.TIME, "when the rewards arrived"),
    Column("pruned", Kind.TIME, "when `logs-ui prune` deleted its messages and tokens; absent if it did not"),
    Column("seconds", Kind.NUMBER, "from the first to the last of its own calls", "seconds>60", "Time", 66),
    Column("messages", Kind.NESTED, "the chat: a list of dicts with `role`, `content`, `tool_calls`, ..."),
    Column("actions", Kind.NESTED,
           "the environment's side: a list of dicts with `turn`, `text`, `action`, `observation`, `reward`, `done`, "
           "`metadata`, `seconds`, `error`, and, of a model call that was seen, `generation` (`seconds`, `finish`, "
           "`error`, `sampling` where it is not the row's, `samples` and `used` where it gave several answers); "
           "turn 0 is the reset. Calls of reward functions come last, with `phase` (`scoring`), `function` and "
           "`evidence`"),
    Column("sampling", Kind.NESTED, "parameters of the generations"),
    Column("metadata", Kind.NESTED, "everything else that was recorded"),
    Column("prompt_ids", Kind.IDS, "token ids of the prompt"),
    Column("completion_ids", Kind.IDS, "token ids of the completion, the model's and the environment's in order"),
    Column("logprobs", Kind.LOGPROBS,
           "of the completion's tokens, from the sampler, exact to about 3 digits: as the rollout function returned "
           "them, else as its model calls did, and then NaN of what was inserted"),
    Column("mask", Kind.MASK, "1 where the model sampled the token; absent where all are the model's"),
)  # fmt: skip
"""All columns, in the order of a DataFrame."""

BY_NAME = {column.name: column for column in COLUMNS}


def in_order(items: Mapping[str, _T], first: Collection[str], last: Collection[str]) -> dict[str, _T]:
    """Return the entries of these names at the beginning and at the end, and between them the others as they come."""
    others = (name for name in items if name not in first and name not in last)
    return {name: items[name] for name in (*first, *others, *last)}
