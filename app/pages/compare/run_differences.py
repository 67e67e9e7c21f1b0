"""Compares what several runs consist of: facts, arguments, versions, sources."""

import difflib
from collections import defaultdict
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

from logs_ui.app.parts import figures, words
from logs_ui.app.parts import safe_text as text
from logs_ui.recorder.queries import RunSummary
from logs_ui.recorder.storage.tables import RunSource
from logs_ui.recorder.vocabulary import SourceKind

_CONTEXT = 3  # lines round a change
_MOST_LINES = 2_000  # of a text that is compared line by line
_SHOWN_LINES = 600

TITLES = {
    SourceKind.REWARD: "Reward function",
    SourceKind.ROLLOUT: "Rollout function",
    SourceKind.ENVIRONMENT: "Environment",
    SourceKind.CHAT_TEMPLATE: "Chat template",
    SourceKind.DATASET: "Dataset",
}


class RunSetting(NamedTuple):
    """Holds a named value of each run, as text; None for a run without one."""

    name: str
    values: list[str | None]

    @property
    def differs(self) -> bool:
        return len(set(self.values)) > 1


class RunSettings(NamedTuple):
    """Holds several settings of one kind; `shown` are those that differ, or all."""

    shown: list[RunSetting]
    differing: int
    total: int


class DiffLine(NamedTuple):
    """Holds a line of a diff."""

    kind: str  # `added`, `removed`, `same`, `gap` for omitted lines, or `file` for git's file headers
    text: str
    # `before` and `after`: line number in either text.
    before: int | None = None
    after: int | None = None


class Variant(NamedTuple):
    """One text, and the indices of the runs that have it; `hash` is None if only a name is stored."""

    runs: list[int]
    hash: str | None
    weight: float | None


class Difference(NamedTuple):
    """Holds the diff of a variant against the first one; `is_cut` if it is longer than what is shown."""

    before: Variant
    after: Variant
    lines: list[DiffLine]
    is_cut: bool


class Comparison(NamedTuple):
    """One source that the runs have in several variants."""

    title: str
    name: str
    variants: list[Variant]  # that of the first run comes first
    missing: list[int]  # runs that lack it, although other sources of the kind are stored for them
    differences: list[Difference]  # to the first variant; empty if all runs that have it share one text

    @property
    def differs(self) -> bool:
        return len(self.variants) > 1 or bool(self.missing)


class ChangedFile(NamedTuple):
    """A file that differed from the commit: number of lines added and removed, `-` for a binary file."""

    added: str
    removed: str
    name: str


class WorkingTree(NamedTuple):
    """Describes uncommitted changes of tracked files."""

    runs: list[int]
    unlike: list[ChangedFile]  # files that not every run changed by the same number of lines
    alike: list[ChangedFile]
    hash: str | None  # of the diff; None if only the names were stored
    lines: list[DiffLine]  # of the diff; `is_cut` if there are more
    is_cut: bool


def facts(summaries: Sequence[RunSummary]) -> list[RunSetting]:
    """Return the most important settings; those that no run has are left out."""
    trees = {None: None, True: "uncommitted changes", False: "clean"}
    rows: dict[str, list[Any]] = {
        "model": [it.run.model for it in summaries],
        "completions per prompt": [it.run.num_generations for it in summaries],
        "planned steps": [words.planned_steps(it) for it in summaries],
        "commit": [it.run.git_commit and it.run.git_commit[:12] for it in summaries],
        "working tree": [trees[it.run.git_dirty] for it in summaries],
        "tokenizer": [it.run.tokenizer and it.run.tokenizer[:12] for it in summaries],
        "host": [it.run.host for it in summaries],
        "resumes": [it.run.parent for it in summaries],
    }
    found = [
        RunSetting(name, [None if value is None else str(value) for value in values]) for name, values in rows.items()
    ]
    return [setting for setting in found if any(value is not None for value in setting.values)]


def settings(values: Sequence[Mapping[str, Any]], *, everything: bool) -> RunSettings:
    """Compare values by name; a name that a run lacks is None for it."""
    names = sorted({name for each in values for name in each})
    found = [RunSetting(name, [_written(each[name]) if name in each else None for each in values]) for name in names]
    differing = [setting for setting in found if setting.differs]
    return RunSettings(found if everything else differing, len(differing), len(found))


def comparisons(sources: Sequence[Sequence[RunSource]], texts: Mapping[str, str]) -> list[Comparison]:
    """Compare the sources of the runs, differing ones first. `texts` maps hashes to texts."""
    by_thing: dict[tuple[str, str], dict[int, RunSource]] = defaultdict(dict)
    for run, of_run in enumerate(sources):
        for source in of_run:
            if source.kind in TITLES:
                by_thing[source.kind, source.name][run] = source
    known = [run for run, of_run in enumerate(sources) if of_run]
    found = [_comparison(key, having, known, texts) for key, having in by_thing.items()]
    order = list(TITLES.values())
    return sorted(found, key=lambda it: (not it.differs, order.index(it.title), it.name))


def working_trees(sources: Sequence[Sequence[RunSource]], texts: Mapping[str, str]) -> list[WorkingTree]:
    """Return the uncommitted changes of the runs that started with any."""
    grouped: dict[tuple[str | None, str | None], list[int]] = defaultdict(list)
    for run, of_run in enumerate(sources):
        hashes = {source.kind: source.hash for source in of_run}
        key = hashes.get(SourceKind.CHANGED_FILES), hashes.get(SourceKind.CHANGES)
        if any(key):
            grouped[key].append(run)
    files = [_files(texts.get(names or "", "")) for names, _ in grouped]
    everywhere = set.intersection(*map(set, files)) if len(files) > 1 else set()
    found = []
    for ((_, diff), runs), of_tree in zip(grouped.items(), files, strict=True):
        lines = texts.get(diff or "", "").splitlines()
        found.append(
            WorkingTree(
                runs=runs,
                unlike=[file for file in of_tree if file not in everywhere],
                alike=[file for file in of_tree if file in everywhere],
                hash=diff,
                lines=[_git_line(line) for line in lines[:_SHOWN_LINES]],
                is_cut=len(lines) > _SHOWN_LINES,
            )
        )
    return found


def _files(text: str) -> list[ChangedFile]:
    named = (line.split("\t", 2) for line in text.splitlines())
    return [ChangedFile(*parts) for parts in named if len(parts) == 3]


def _git_line(line: str) -> DiffLine:
    if line.startswith(("diff --git", "index ", "--- ", "+++ ", "new file", "deleted file")):
        return DiffLine("file", line)
    kind = {"+": "added", "-": "removed", "@": "gap"}.get(line[:1], "same")
    return DiffLine(kind, line if kind == "gap" else line[1:])


def _comparison(
    key: tuple[str, str], having: Mapping[int, RunSource], runs: list[int], texts: Mapping[str, str]
) -> Comparison:
    kind, name = key
    grouped: dict[tuple[str | None, float | None], list[int]] = defaultdict(list)
    for run, source in having.items():
        grouped[source.hash, source.weight].append(run)
    variants = [Variant(of, digest, weight) for (digest, weight), of in grouped.items()]
    first = variants[0]
    differences = [_difference(first, other, texts) for other in variants[1:] if other.hash != first.hash]
    missing = [run for run in runs if run not in having]
    return Comparison(TITLES[SourceKind(kind)], name, variants, missing, differences)


def _difference(first: Variant, other: Variant, texts: Mapping[str, str]) -> Difference:
    before, after = (texts.get(variant.hash or "", "").splitlines() for variant in (first, other))
    lines = _unified(before[:_MOST_LINES], after[:_MOST_LINES])
    is_cut = len(lines) > _SHOWN_LINES or max(len(before), len(after)) > _MOST_LINES
    return Difference(first, other, lines[:_SHOWN_LINES], is_cut)


def _unified(before: list[str], after: list[str]) -> list[DiffLine]:
    lines: list[DiffLine] = []
    for hunk in difflib.SequenceMatcher(None, before, after).get_grouped_opcodes(_CONTEXT):
        lines.append(DiffLine("gap", f"lines {hunk[0][1] + 1} to {hunk[-1][2]}"))
        for tag, i1, i2, j1, j2 in hunk:
            if tag == "equal":
                lines += [
                    DiffLine("same", before[i], i + 1, j + 1) for i, j in zip(range(i1, i2), range(j1, j2), strict=True)
                ]
                continue
            lines += [DiffLine("removed", before[i], before=i + 1) for i in range(i1, i2)]
            lines += [DiffLine("added", after[j], after=j + 1) for j in range(j1, j2)]
    return lines


def _written(value: Any) -> str:
    return text.as_json(value) if value is None else text.as_text(figures.tidy(value))
