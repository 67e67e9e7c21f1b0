"""Gives each item of multiprocessing's ThreadPool a strand of its own, in their order."""

import functools
from collections.abc import Callable, Iterable
from types import ModuleType
from typing import Any

from logs_ui.recorder.capture.instruments.patch import patches
from logs_ui.recorder.capture.strands import Strand, branch, carried, within

Method = Callable[..., Any]


def attach(module: ModuleType) -> None:
    """Patch `multiprocessing.pool`. Its pools of processes share these methods; their calls are passed on."""
    pool, threads = module.Pool, module.ThreadPool
    patches.method(pool, "apply_async", functools.partial(_one_with_strand, threads))
    for name in ("map", "map_async", "imap", "imap_unordered"):
        patches.method(pool, name, functools.partial(_each_with_strand, threads, _call))
    for name in ("starmap", "starmap_async"):
        patches.method(pool, name, functools.partial(_each_with_strand, threads, _star))


def _one_with_strand(threads: type, original: Method) -> Method:
    @functools.wraps(original)
    def apply_async(self: Any, func: Any, *args: Any, **kwargs: Any) -> Any:
        strand = branch() if isinstance(self, threads) else None
        if strand is None:
            return original(self, func, *args, **kwargs)
        return original(self, carried(strand, func), *args, **kwargs)

    return apply_async


def _each_with_strand(threads: type, wrap: Callable[..., Any], original: Method) -> Method:
    @functools.wraps(original)
    def each(self: Any, func: Any, iterable: Iterable[Any], *args: Any, **kwargs: Any) -> Any:
        above = branch() if isinstance(self, threads) else None
        if above is None:
            return original(self, func, iterable, *args, **kwargs)
        items = ((above.tree.child(above), item) for item in iterable)
        return original(self, *wrap(func, items), *args, **kwargs)

    return each


def _call(func: Any, items: Iterable[tuple[Strand, Any]]) -> tuple[Method, Iterable[Any]]:
    def work(item: tuple[Strand, Any]) -> Any:
        with within(item[0]):
            return func(item[1])

    return work, items


def _star(func: Any, items: Iterable[tuple[Strand, Any]]) -> tuple[Method, Iterable[Any]]:
    def work(strand: Strand, *arguments: Any) -> Any:
        with within(strand):
            return func(*arguments)

    return work, ((strand, *item) for strand, item in items)
