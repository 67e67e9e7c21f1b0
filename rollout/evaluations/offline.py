"""Runs an evaluation without a trainer: it asks any model server by messages, and records each rollout."""

from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any

from logs_ui.recorder import OpenRun, unrecorded
from logs_ui.rollout.environments.threads import in_thread
from logs_ui.rollout.evaluations.report import Sample
from logs_ui.rollout.evaluations.scoring import EvaluationRow, Scoring, task_name
from logs_ui.rollout.functions.openenv_rollouts import OpenEnvRollouts
from logs_ui.rollout.models.backends import AroundModel, Sampling
from logs_ui.rollout.models.one_line import one_line
from logs_ui.rollout.models.server_model import ChatModel
from logs_ui.rollout.models.token_episode import Answer
from logs_ui.rollout.play.batch import play_rows, run
from logs_ui.rollout.play.chat_template import Chat, Message, Prompt, joined
from logs_ui.rollout.play.evaluation_dataset import PromptTasks
from logs_ui.rollout.play.play import Episodes, as_messages
from logs_ui.rollout.play.tasks_and_seeds import Seeded

_WITHOUT_END = 1 << 62
"""A budget: messages are no tokens to be counted."""

Progress = Callable[[Sample, int], None]
"""Called after each rollout, with it and how many there are in all."""


@dataclass(frozen=True)
class MessageChat(Chat):
    """Replaces a chat template without a tokenizer: a token id is the number of a whole message."""

    tokenizer: Any = None
    heard: list[Message] = field(default_factory=list)

    def prompt_ids(self, prompt: Prompt, more: Sequence[Message] = ()) -> list[int]:
        """Return numbers of messages. A text becomes a user message: servers apply their template to everything."""
        return self.numbers(joined([*as_messages(prompt), *more]))

    def inserted(self, answer: Sequence[int], messages: Sequence[Message], *, plain: bool = False) -> list[int]:  # noqa: ARG002
        return self.numbers(joined(messages))

    def numbers(self, messages: Sequence[Message]) -> list[int]:
        """Return the numbers of new messages."""
        self.heard.extend(messages)
        return list(range(len(self.heard) - len(messages), len(self.heard)))


@dataclass(frozen=True)
class MessageModel(AroundModel):
    """A `backends.Model` whose answers are known as texts only."""

    model: Any  # a `ChatModel`, which answers messages only
    chat: MessageChat

    async def answer(self, row: int, context: Sequence[int], sampling: Sampling) -> Answer:  # noqa: ARG002
        reply = await self.model.reply([self.chat.heard[number] for number in context], sampling)
        numbers = self.chat.numbers([{"role": "assistant", "content": reply.text}])
        return Answer(numbers, None, "length" if reply.finish == "length" else "stop", reply.text)


@dataclass(frozen=True)
class Offline:
    """Evaluates a model on a server."""

    rollouts: OpenEnvRollouts
    scoring: Scoring
    server: ChatModel
    rows: Sequence[Mapping[str, Any]]  # the dataset's rows, each played `samples` times
    samples: int
    concurrency: int  # rollouts at the same time
    sampling: Sampling
    progress: Progress | None

    def check(self) -> None:
        """Raise GenerationError or SessionError if the model does not answer, or the environment lacks sessions."""

        async def tried() -> None:
            await self.server.preflight()
            episodes = self._episodes()
            await episodes.begin(min(self.concurrency, len(episodes.prompts)))
            episodes.release()

        run(tried())

    def play(self, recording: OpenRun) -> list[Sample]:
        """Play, score and record all rollouts. An exception becomes the rollout's own error."""
        episodes = self._episodes()

        def play(row: int) -> Awaitable[Sample]:
            return self._sample(row, episodes, recording)

        return run(play_rows(len(episodes.prompts), episodes.model, self.concurrency, play))

    def _episodes(self) -> Episodes:
        chat = MessageChat()
        model = Seeded(MessageModel(self.server, chat), "offline", 0)
        prompts = [row["prompt"] for row in self.rows for _ in range(self.samples)]
        rotation = self.rollouts.rotation
        # Each row of the dataset is one group: all of its samples get the same task and the same seed.
        groups = [rotation.of("eval", i) for i in range(len(self.rows))]
        if isinstance(rotation, PromptTasks):
            groups = [rotation.with_task(group, row["prompt"]) for group, row in zip(groups, self.rows, strict=True)]
        assignments = [group for group in groups for _ in range(self.samples)]
        episodes = self.rollouts.episodes(prompts, assignments, model=model, chat=chat, budget=_WITHOUT_END)
        return replace(episodes, sampling=self.sampling)

    async def _sample(self, row: int, episodes: Episodes, recording: OpenRun) -> Sample:
        group, generation = divmod(row, self.samples)
        prompt = episodes.prompts[row]
        columns = {name: value for name, value in self.rows[group].items() if name != "prompt"}
        task = task_name(episodes.assignments[row].task, columns.get("task"), columns.get("task_id"))
        metadata = {"dataset": columns}
        recorded = recording.rollout(prompt, task=task, group=str(group), generation=generation, metadata=metadata)
        scores: Mapping[str, float | None] = {}
        failed = None
        try:
            with recorded:
                rollout = await episodes.play(row)
                if rollout.error is not None:
                    raise rollout.error  # noqa: TRY301 - recorded as what ended it
                trajectory = rollout.trajectory
                ended = EvaluationRow(
                    prompt, rollout.messages, columns, task, rollout.turns, trajectory.rewards, rollout.reward
                )
                scores, failed = await in_thread(partial(self._scored, ended))
                if failed is not None:
                    recorded.note(scoring=failed)
        except Exception as error:  # noqa: BLE001 - it costs its own row
            failed = one_line(error)
        recorded.score(rewards=scores, weights=self.scoring.weights)
        sample = Sample(group, generation, task, self.scoring.total(scores), scores, failed)
        if self.progress is not None:
            self.progress(sample, len(episodes.prompts))
        return sample

    def _scored(self, row: EvaluationRow) -> tuple[Mapping[str, float | None], str | None]:
        """Return the scores, or why there are none. A judge that is called is no generation of the rollout."""
        try:
            with unrecorded():
                return self.scoring.parts(row), None
        except Exception as error:  # noqa: BLE001 - the user's own function
            return {}, f"{self.scoring.name}() failed: {one_line(error)}"
