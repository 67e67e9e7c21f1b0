"""Lists every kind of page that the dashboard has, for any database: for walks, pictures and timings."""

from dataclasses import replace

from sqlalchemy import Engine

from logs_ui.app.parts.view import View, ViewKind, print_view
from logs_ui.app.web import urls
from logs_ui.recorder import queries
from logs_ui.recorder.queries.filters.rollout_filter import Sort, parse_where
from logs_ui.recorder.storage.address import Address
from logs_ui.recorder.storage.database import reading_engine
from logs_ui.recorder.storage.tables import EvaluationRow


def pages(db: Address, run: str = "latest") -> dict[str, str]:
    """Return the address of each page, by name; a rollout's pages show one that ran out of turns, if there is any."""
    engine = reading_engine(db)
    try:
        return _pages(engine, run)
    finally:
        engine.dispose()


def _pages(engine: Engine, name: str) -> dict[str, str]:
    run = queries.find_run(engine, name)
    others = [summary.run.uid for summary in queries.all_runs(engine) if summary.run.uid != run.uid]
    lowest = _rows(engine, run.id or 0, "mode:train stop:turn_limit") or _rows(engine, run.id or 0, "")
    row, other = (lowest[0].id or 0), (lowest[-1].id or 0)
    low = parse_where("reward<0.5 stop:length,no_action,turn_limit")
    return {
        "runs": urls.home(),
        "runs-compared": urls.compare_runs([run.uid, *others[:2]] if others else [run.uid]),
        "overview": urls.overview(run.uid),
        "rollouts": urls.rollouts(run.uid),
        "rollouts-filtered": urls.rollouts(run.uid, low),
        "rollouts-searched": urls.rollouts(run.uid, parse_where("text:guess")),
        "rollouts-empty": urls.rollouts(run.uid, parse_where("status:aborted reward>=0.5 step:3..")),
        "pivot": urls.rollouts(run.uid, view=print_view(View(kind=ViewKind.PIVOT))),
        "groups": urls.groups(run.uid),
        "group": urls.group(run.uid, row),
        "why": urls.why(run.uid),
        "why-tasks": urls.why(run.uid, "tasks"),
        "why-actions": urls.why(run.uid, "actions"),
        "why-rewards": urls.why(run.uid, "rewards"),
        "why-trained": urls.why(run.uid, "trained"),
        "why-audit": urls.why(run.uid, "audit"),
        "rollouts-compared": urls.compare_rollouts(run.uid, row, other),
        "rollout": urls.rollout(run.uid, row),
        "tokens": urls.rollout(run.uid, row, view="tokens"),
        "raw": urls.rollout(run.uid, row, view="raw"),
    }


def _rows(engine: Engine, run_id: int, where: str) -> list[EvaluationRow]:
    """Return the two rollouts of lowest reward."""
    chosen = replace(parse_where(where), sort=Sort.LOWEST_REWARD)
    return queries.page(engine, run_id, chosen, limit=2).rows
