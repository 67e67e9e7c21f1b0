// Groups: the filter's line follows the table; in one group, keys walk its columns, and the first parting is scrolled to.
"use strict";
{
  const pane = document.querySelector(".group-columns");
  let sent = null;
  const line = () => document.getElementById("where");
  document.addEventListener("submit", (event) => { if (event.target.id === "where-form") sent = line().value; }, true);
  document.addEventListener("htmx:after:swap", (event) => {
    if (event.detail.ctx.target?.id !== "groups") return;
    document.getElementById("flash").replaceChildren();
    // What was sent comes back in its shortest form; what somebody writes meanwhile stays.
    if (document.activeElement !== line() || line().value === sent) line().value = document.getElementById("groups").dataset.where;
  });

  const columns = () => [...document.querySelectorAll(".completion")];
  const here = () => {
    const all = columns();
    const focused = all.indexOf(document.activeElement?.closest(".completion"));
    return focused >= 0 ? focused : null;
  };
  const go = (by) => {
    const all = columns();
    const at = here();
    const next = all[Math.min(Math.max(at === null ? (by > 0 ? 0 : all.length - 1) : at + by, 0), all.length - 1)];
    next?.querySelector(".column-link").focus({ preventScroll: true });
    next?.scrollIntoView({ inline: "nearest", block: "nearest" });
  };
  document.addEventListener("keydown", (event) => {
    if (event.ctrlKey || event.metaKey || event.altKey || event.shiftKey || document.querySelector("dialog[open]")) return;
    if (event.target.matches?.("input, select, textarea")) return;
    if (!pane || (event.key !== "ArrowRight" && event.key !== "ArrowLeft")) return;
    event.preventDefault();
    go(event.key === "ArrowRight" ? 1 : -1);
  });

  // Where they part, unless the reader comes back to where they were.
  const first = pane?.querySelector(".parting");
  if (first && !location.hash && performance.getEntriesByType("navigation")[0]?.type !== "back_forward") {
    const below = first.getBoundingClientRect().bottom - pane.getBoundingClientRect().bottom;
    if (below > -80) pane.scrollTop += below + pane.clientHeight / 2; // what fits the window stays as it is
  }
}
