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
    """Holds several settings of one kind; `settings` are those that differ, or all."""

    settings: list[RunSetting]
    differing_count: int
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

    run_indices: list[int]
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
    missing_indices: list[
        int
    ]  # indices of the runs that lack it, although other sources of the kind are stored for them
    differences: list[Difference]  # to the first variant; empty if all runs that have it share one text

    @property
    def differs(self) -> bool:
        return len(self.variants) > 1 or bool(self.missing_indices)


class ChangedFile(NamedTuple):
    """A file that differed from the commit: number of lines added and removed, `-` for a binary file."""

    added: str
    removed: str
    name: str


class WorkingTree(NamedTuple):
    """Describes uncommitted changes of tracked files, and the indices of the runs that started with them."""

    run_indices: list[int]
    differing_files: list[ChangedFile]  # files that not every run changed by the same number of lines
    common_files: list[ChangedFile]
    hash: str | None  # of the diff; None if only the names were stored
    lines: list[DiffLine]  # of the diff; `is_cut` if there are more
    is_cut: bool


def facts(summaries: Sequence[RunSummary]) -> list[RunSetting]:
    """Return the most important settings; those that no run has are left out."""
    trees = {None: None, True: "uncommitted changes", False: "clean"}
    rows: dict[str, list[Any]] = {
        "model": [summary.run.model for summary in summaries],
        "completions per prompt": [summary.run.num_generations for summary in summaries],
        "planned steps": [words.planned_steps(summary) for summary in summaries],
        "commit": [summary.run.git_commit and summary.run.git_commit[:12] for summary in summaries],
        "working tree": [trees[summary.run.git_dirty] for summary in summaries],
        "tokenizer": [summary.run.tokenizer and summary.run.tokenizer[:12] for summary in summaries],
        "host": [summary.run.host for summary in summaries],
        "resumes": [summary.run.parent for summary in summaries],
    }
    run_settings = [
        RunSetting(name, [None if value is None else str(value) for value in values]) for name, values in rows.items()
    ]
    return [setting for setting in run_settings if any(value is not None for value in setting.values)]


def settings(values: Sequence[Mapping[str, Any]], *, shows_all: bool) -> RunSettings:
    """Compare values by name; a name that a run lacks is None for it."""
    names = sorted({name for run_values in values for name in run_values})
    run_settings = [
        RunSetting(name, [_print_value(run_values[name]) if name in run_values else None for run_values in values])
        for name in names
    ]
    differing_settings = [setting for setting in run_settings if setting.differs]
    return RunSettings(run_settings if shows_all else differing_settings, len(differing_settings), len(run_settings))


def comparisons(sources: Sequence[Sequence[RunSource]], texts: Mapping[str, str]) -> list[Comparison]:
    """Compare the sources of the runs, differing ones first. `texts` maps hashes to texts."""
    by_source: dict[tuple[str, str], dict[int, RunSource]] = defaultdict(dict)
    for run_index, run_sources in enumerate(sources):
        for source in run_sources:
            if source.kind in TITLES:
                by_source[source.kind, source.name][run_index] = source
    indices_with_sources = [run_index for run_index, run_sources in enumerate(sources) if run_sources]
    source_comparisons = [
        _comparison(key, sources_by_index, indices_with_sources, texts) for key, sources_by_index in by_source.items()
    ]
    order = list(TITLES.values())
    return sorted(
        source_comparisons,
        key=lambda comparison: (not comparison.differs, order.index(comparison.title), comparison.name),
    )


def working_trees(sources: Sequence[Sequence[RunSource]], texts: Mapping[str, str]) -> list[WorkingTree]:
    """Return the uncommitted changes of the runs that started with any."""
    indices_by_hashes: dict[tuple[str | None, str | None], list[int]] = defaultdict(list)
    for run_index, run_sources in enumerate(sources):
        hashes = {source.kind: source.hash for source in run_sources}
        key = hashes.get(SourceKind.CHANGED_FILES), hashes.get(SourceKind.CHANGES)
        if any(key):
            indices_by_hashes[key].append(run_index)
    files = [_files(texts.get(names or "", "")) for names, _ in indices_by_hashes]
    files_of_all = set.intersection(*map(set, files)) if len(files) > 1 else set()
    trees = []
    for ((_, diff), run_indices), tree_files in zip(indices_by_hashes.items(), files, strict=True):
        lines = texts.get(diff or "", "").splitlines()
        trees.append(
            WorkingTree(
                run_indices=run_indices,
                differing_files=[file for file in tree_files if file not in files_of_all],
                common_files=[file for file in tree_files if file in files_of_all],
                hash=diff,
                lines=[_git_line(line) for line in lines[:_SHOWN_LINES]],
                is_cut=len(lines) > _SHOWN_LINES,
            )
        )
    return trees


def _files(text: str) -> list[ChangedFile]:
    columns = (line.split("\t", 2) for line in text.splitlines())
    return [ChangedFile(*parts) for parts in columns if len(parts) == 3]


def _git_line(line: str) -> DiffLine:
    if line.startswith(("diff --git", "index ", "--- ", "+++ ", "new file", "deleted file")):
        return DiffLine("file", line)
    kind = {"+": "added", "-": "removed", "@": "gap"}.get(line[:1], "same")
    return DiffLine(kind, line if kind == "gap" else line[1:])


def _comparison(
    key: tuple[str, str],
    sources_by_index: Mapping[int, RunSource],
    indices_with_sources: list[int],
    texts: Mapping[str, str],
) -> Comparison:
    """Compare one source of the runs, whose kind and name are the key. The indices are places among the compared runs:
    of those that have this source, and of those for which any source is stored.
    """
    kind, name = key
    indices_by_variant: dict[tuple[str | None, float | None], list[int]] = defaultdict(list)
    for run_index, source in sources_by_index.items():
        indices_by_variant[source.hash, source.weight].append(run_index)
    variants = [
        Variant(variant_indices, digest, weight) for (digest, weight), variant_indices in indices_by_variant.items()
    ]
    first_variant = variants[0]
    differences = [
        _difference(first_variant, variant, texts) for variant in variants[1:] if variant.hash != first_variant.hash
    ]
    missing_indices = [run_index for run_index in indices_with_sources if run_index not in sources_by_index]
    return Comparison(TITLES[SourceKind(kind)], name, variants, missing_indices, differences)


def _difference(first: Variant, second: Variant, texts: Mapping[str, str]) -> Difference:
    before, after = (texts.get(variant.hash or "", "").splitlines() for variant in (first, second))
    lines = _diff_lines(before[:_MOST_LINES], after[:_MOST_LINES])
    is_cut = len(lines) > _SHOWN_LINES or max(len(before), len(after)) > _MOST_LINES
    return Difference(first, second, lines[:_SHOWN_LINES], is_cut)


def _diff_lines(before: list[str], after: list[str]) -> list[DiffLine]:
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


def _print_value(value: Any) -> str:
    return text.as_json(value) if value is None else text.as_text(figures.tidy(value))
