// Dragging on the histogram of rewards, closing what hangs open above the table, and coming back to the row that was opened.
"use strict";
{
  // --- Drag: from bin to bin; the ends stand in the form's fields, which filter as if they had been written there.
  let from = null;
  let moved = false;
  const bins = (chart) => [...chart.querySelectorAll("a[data-bin]")];
  const binAt = (chart, x) => {
    const box = chart.getBoundingClientRect();
    const all = bins(chart);
    return Math.min(Math.max(Math.floor(((x - box.left) / box.width) * all.length), 0), all.length - 1);
  };
  const show = (chart, first, last) => bins(chart).forEach((bin, i) => {
    bin.lastElementChild.classList.toggle("out", i < first || i > last);
  });
  document.addEventListener("pointerdown", (event) => {
    const chart = event.target.closest?.(".histogram");
    if (!chart || event.button !== 0 || !bins(chart).length) return;
    event.preventDefault(); // a link would be dragged
    [from, moved] = [{ chart, bin: binAt(chart, event.clientX) }, false];
  });
  document.addEventListener("pointermove", (event) => {
    if (!from) return;
    const to = binAt(from.chart, event.clientX);
    moved ||= to !== from.bin;
    if (!moved) return;
    from.chart.dataset.drag = "";
    show(from.chart, Math.min(from.bin, to), Math.max(from.bin, to));
  });
  document.addEventListener("pointercancel", () => { from = null; });
  document.addEventListener("pointerup", (event) => {
    if (!from) return;
    const { chart, bin } = from;
    from = null;
    delete chart.dataset.drag;
    if (!moved) return; // a click follows its bin's link
    const to = binAt(chart, event.clientX);
    const all = bins(chart);
    const low = document.getElementById("filter-reward_min");
    low.value = all[Math.min(bin, to)].dataset.low;
    document.getElementById("filter-reward_max").value = all[Math.max(bin, to)].dataset.high;
    low.dispatchEvent(new Event("change", { bubbles: true }));
  });
  // A drag that ends on a bin is no click on it.
  document.addEventListener("click", (event) => {
    if (moved && event.target.closest?.(".histogram")) event.preventDefault(), event.stopPropagation();
    moved = false;
  }, true);

  // --- Sheets close when one looks elsewhere.
  const close = (except) => {
    for (const menu of document.querySelectorAll(".menu[open]")) if (menu !== except) menu.open = false;
  };
  document.addEventListener("click", (event) => close(event.target.closest?.(".menu")));
  document.addEventListener("keydown", (event) => {
    if (event.key !== "Escape") return;
    const open = document.querySelector(".menu[open]");
    close(null);
    open?.querySelector("summary").focus();
  });

  // --- Back, and `u` from a rollout, lead to the row that was opened, where it was in the window. The server sends the
  // rows down to `at`; rows that have come in since above it do not move it.
  const current = (row) => {
    document.querySelector("#rows [aria-current]")?.removeAttribute("aria-current");
    row.setAttribute("aria-current", "true");
  };
  document.addEventListener("click", (event) => {
    const row = event.target.closest?.(".row-link")?.closest("tr");
    if (!row || event.ctrlKey || event.metaKey || event.shiftKey) return; // another tab
    current(row);
    history.scrollRestoration = "manual"; // for this visit: the browser remembers only how far the page was scrolled
    const at = row.id.slice(4);
    const rest = location.search.replace(/[?&](at|after)=[^&]*/g, "").replace(/^&/, "?");
    sessionStorage.setItem("logs-ui-row", JSON.stringify([at, row.getBoundingClientRect().top]));
    history.replaceState(history.state, "", `${location.pathname}${rest}${rest ? "&" : "?"}at=${at}`);
  });
  const row = document.querySelector("#rows [aria-current]");
  if (row) {
    const [at, top] = JSON.parse(sessionStorage.getItem("logs-ui-row") ?? "[]");
    row.scrollIntoView({ block: "center" });
    const from = row.closest(".scroll");
    if (row.id === `row-${at}`) for (const it of [from, window]) it.scrollBy(0, row.getBoundingClientRect().top - top);
    row.querySelector(".row-link").focus({ preventScroll: true }); // `j` and `k` go on from there
    history.replaceState(history.state, "", location.pathname + location.search.replace(/([?&])at=\d+&?/, "$1").replace(/[?&]$/, ""));
  }
}
