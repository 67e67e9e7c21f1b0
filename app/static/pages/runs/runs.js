// The list of runs: ticks that outlive a refresh, and what can be done with so many of them. A few runs need no ticks to
// be compared, and Shift ticks all between two clicks.
"use strict";
{
  const ticked = new Set();
  let last;
  const boxes = () => [...document.querySelectorAll('.tick input[name="run"]')];
  const areFew = () => !ticked.size && boxes().length > 1 && boxes().length < 7;

  const show = () => {
    for (const button of document.querySelectorAll("[data-needs]")) {
      button.disabled = ticked.size < Number(button.dataset.needs) || ticked.size > Number(button.dataset.most ?? Infinity);
    }
    const compare = document.getElementById("compare");
    if (compare) compare.textContent = areFew() ? `Compare all ${boxes().length}` : "Compare";
    if (compare && areFew()) compare.disabled = false;
    const said = document.querySelector("[data-ticked]");
    if (said) said.textContent = ticked.size ? `${ticked.size} selected${ticked.size > 6 ? "; compare at most 6" : ""}` : "";
  };
  const read = (box) => box.checked ? ticked.add(box.value) : ticked.delete(box.value);

  document.addEventListener("change", (event) => {
    if (!event.target.matches?.('.tick input[name="run"]')) return;
    read(event.target);
    show();
  });
  document.addEventListener("click", (event) => {
    const all = boxes(), at = all.indexOf(event.target), from = all.indexOf(last);
    if (event.shiftKey && at >= 0 && from >= 0) {
      for (const box of all.slice(Math.min(at, from), Math.max(at, from) + 1)) {
        box.checked = event.target.checked;
        read(box);
      }
    }
    if (event.target.id === "compare" && areFew()) for (const box of all) box.checked = true;
    if (at >= 0) last = event.target;
  });
  addEventListener("formdata", ({target, formData}) => { // the first that was ticked is A
    if (target.id !== "ticked" || !ticked.size) return;
    formData.delete("run");
    for (const run of ticked) formData.append("run", run);
  });
  // A row that was refreshed, or came back with another filter, is as it was left; one that is out of sight is not meant.
  document.addEventListener("htmx:after:swap", () => {
    const here = new Set();
    for (const box of boxes()) {
      box.checked = ticked.has(box.value);
      here.add(box.value);
    }
    for (const run of ticked) if (!here.has(run)) ticked.delete(run);
    show();
  });

  const isWriting = (element) => element.matches?.("input:not([type=checkbox]), select, textarea");
  document.addEventListener("keydown", (event) => {
    if (event.ctrlKey || event.metaKey || event.altKey || isWriting(event.target) || document.querySelector("dialog[open]")) return;
    if (event.key === "x") document.activeElement?.closest?.("tr")?.querySelector(".tick input")?.click();
    else if (event.key === "c") document.getElementById("compare")?.click();
    else return;
    event.preventDefault();
  });

  addEventListener("pageshow", () => { // Back may bring ticks with it
    boxes().forEach(read);
    show();
  });
}
