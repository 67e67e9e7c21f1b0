// The filter's line: what could be written is asked of the server, which alone knows the language. See _filter_box.html.
"use strict";
{
  const box = () => document.getElementById("where");
  const list = () => document.getElementById("suggestions");
  const options = () => [...document.querySelectorAll("#suggested [role=option]")];
  const chosen = () => document.querySelector("#suggested [aria-selected=true]");
  const isOpen = () => list() && !list().hidden;
  // What was offered for another line would take back what was written since: the next list is on its way.
  const isCurrent = () => list()?.dataset.for === box().value;
  let wanted = false; // an answer that comes late must not open the list again
  let typed = false; // something was written since it opened: then Tab takes what is offered first
  let due = false; // Tab was pressed before its list had come
  let sent = null;
  let picked = null; // the text of the chosen option
  const isLong = () => box().value.length > 2000; // for an address: the form is posted, and nothing is suggested

  const show = (open) => {
    if (!list()) return;
    list().hidden = !open;
    box().setAttribute("aria-expanded", String(open));
    if (!open) { wanted = due = false; choose(null); }
  };
  const choose = (option) => {
    picked = option?.dataset.text;
    chosen()?.setAttribute("aria-selected", "false");
    option?.setAttribute("aria-selected", "true");
    option?.scrollIntoView({ block: "nearest" });
    if (option) box().setAttribute("aria-activedescendant", option.id);
    else box().removeAttribute("aria-activedescendant");
  };
  const ask = () => {
    if (isLong()) return show(false);
    wanted = true;
    htmx.process(box()); // a key may come before htmx has seen to the page
    box().dispatchEvent(new CustomEvent("suggest"));
  };
  const take = (option) => {
    if (!isCurrent()) return;
    const field = box();
    field.value = option.dataset.text;
    field.setSelectionRange(Number(option.dataset.caret), Number(option.dataset.caret));
    field.scrollLeft = field.scrollWidth;
    typed = false;
    compare();
    if (option.hasAttribute("data-more")) ask();
    else show(false);
  };
  const move = (by) => {
    const all = options();
    const next = all.indexOf(chosen()) + by;
    choose(all[next < -1 ? all.length - 1 : next] ?? null); // beyond either end lies the line itself
  };

  const compare = () => box().form.toggleAttribute("data-unsent", box().value !== box().defaultValue);
  const takeable = () => (isOpen() && (chosen() ?? (typed ? options()[0] : null))) || null;
  // Each says whether the key was for the list: else the browser and the page have it.
  const keys = {
    ArrowDown: () => { if (isOpen()) move(1); else ask(); return true; },
    ArrowUp: () => { if (isOpen()) move(-1); return isOpen(); },
    Escape: () => {
      const was = isOpen();
      show(false);
      return was; // else the page leaves the box; what was typed stays, and is marked as not applied
    },
    Enter: () => { const option = isOpen() && chosen(); if (option) take(option); return Boolean(option); },
    Tab: () => {
      due = !due && isOpen() && typed && !isCurrent(); // pressed again, it leaves: the answer may never come
      if (due) return true;
      const option = isCurrent() && takeable();
      if (option) take(option);
      else show(false);
      return Boolean(option);
    },
  };
  document.addEventListener("keydown", (event) => {
    if (event.target !== box() || event.isComposing || event.shiftKey || event.altKey || event.ctrlKey || event.metaKey) return;
    if (!keys[event.key]?.()) return;
    event.preventDefault();
    event.stopPropagation();
  }, true);
  document.addEventListener("input", (event) => {
    if (event.target !== box()) return;
    typed = true;
    due = false;
    compare();
    choose(null); // what was chosen for the line of before
    ask();
  });
  document.addEventListener("focusin", (event) => { if (event.target === box() && !box().value) ask(); });
  document.addEventListener("focusout", (event) => { if (event.target === box()) { typed = false; show(false); } });
  document.addEventListener("pointerdown", (event) => { if (event.target.closest?.("#suggestions")) event.preventDefault(); });
  document.addEventListener("click", (event) => {
    const option = event.target.closest?.("#suggested [role=option]");
    if (option) take(option);
    else if (event.target === box() && !isOpen()) ask();
  });
  document.addEventListener("submit", (event) => {
    if (event.target.id !== "where-form") return;
    if (isLong()) {
      event.preventDefault();
      event.stopPropagation(); // before htmx gets it
      htmx.ajax("POST", event.target.action, { source: event.target });
    }
    sent = box().value;
    typed = false;
    show(false);
  }, true);
  document.addEventListener("htmx:config:request", (event) => {
    const { sourceElement, request } = event.detail.ctx;
    if (sourceElement === box()) request.body.set("at", box().selectionStart);
  });
  document.addEventListener("htmx:after:swap", (event) => {
    const target = event.detail.ctx.target?.id;
    if (target === "suggestions") {
      // An arrow's choice outlives the answer to what was written just before it.
      choose(options().find((option) => option.dataset.text === picked));
      show(wanted && document.activeElement === box() && options().length > 0);
      if (due && isCurrent()) keys.Tab();
    }
    // What was sent comes back in its shortest form; what somebody writes meanwhile stays.
    if (target === "results" && box() && (document.activeElement !== box() || box().value === sent)) box().value = box().defaultValue;
    if (box()) compare();
  });
}
