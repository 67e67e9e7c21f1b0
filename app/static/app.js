// What HTML and htmx cannot do: keys, copying, the theme, and saying when the connection is lost.
"use strict";
{
  const root = document.documentElement;
  const isWriting = (element) => element.matches?.("input:not([type=checkbox]), select, textarea");

  // htmx puts our own, escaped answers into the page; it never compiles or runs what stands in them.
  const refuse = () => { throw new Error("logs-ui runs no code from a page"); };
  const rules = { createHTML: (html) => html, createScript: () => "" };
  htmx.registerExtension("logs-ui", {
    init: (api) => api.initSecurity(window.trustedTypes?.createPolicy("htmx", rules) ?? rules, refuse, refuse),
    // What the reader folded or unfolded stays so when the page is refreshed.
    htmx_before_morph_attr: (element, detail) => !(element.tagName === "DETAILS" && detail.attrName === "open"),
  });

  // --- Live parts: never say "live" when nothing answers.
  const isPoll = (event) => event.detail.ctx?.sourceElement?.hasAttribute?.("data-poll");
  const connection = (lost) => document.body.toggleAttribute("data-lost", lost);
  document.addEventListener("htmx:error", (event) => isPoll(event) && connection(true));
  document.addEventListener("htmx:after:request", (event) => {
    if (isPoll(event)) connection(event.detail.ctx.response.status >= 500);
  });

  // What takes seconds to make has a frame meanwhile, which gives way to it. Its address is that of the frame.
  const frame = document.querySelector("[data-whole]");
  if (frame) location.replace(frame.dataset.whole + location.hash);
  const waited = /[?&]wait=1(?=#|$)/;
  if (waited.test(location.href)) history.replaceState(history.state, "", location.href.replace(waited, ""));

  // A page that could not be read comes back once it can be.
  if (document.querySelector("[data-comes-back]")) {
    setInterval(async () => {
      const answer = await fetch(location.href).catch(() => null);
      if (answer?.ok) location.reload();
    }, 3000);
  }

  // At its top, the table of the newest rollouts follows what comes in, unless a hand, the keyboard or a selection is on
  // it: nothing moves under the reader.
  const follows = () => {
    const rows = document.querySelector("#rows[data-follow]");
    return rows && scrollY < 8 && rows.closest(".scroll").scrollTop < 8 && !rows.matches(":hover")
      && !rows.contains(document.activeElement) && !(getSelection().type === "Range" && getSelection().containsNode(rows, true));
  };
  document.addEventListener("htmx:config:request", (event) => {
    const { sourceElement, request } = event.detail.ctx;
    if (sourceElement?.id === "live" && follows()) request.body.set("follow", "1");
  });

  // A filter that is set elsewhere than in its own field shows in the field too, save where somebody writes.
  document.addEventListener("htmx:after:swap", (event) => {
    if (event.detail.ctx.target?.id !== "results") return;
    document.getElementById("flash").replaceChildren();
    for (const field of document.getElementById("filters")?.elements ?? []) {
      if (field === document.activeElement && field.type !== "checkbox") continue;
      if (field.type === "checkbox") field.checked = field.defaultChecked;
      else if (field.tagName === "INPUT") field.value = field.defaultValue;
      else if (field.tagName === "SELECT") for (const option of field.options) option.selected = option.defaultSelected;
    }
  });

  // --- Ages grow older.
  const age = (seconds) => {
    for (const [size, unit] of [[86400, "d"], [3600, "h"], [60, "m"]]) {
      if (seconds >= size) return `${Math.floor(seconds / size)}${unit} ago`;
    }
    return seconds >= 10 ? `${Math.floor(seconds)}s ago` : "just now";
  };
  setInterval(() => {
    for (const time of document.querySelectorAll("time[data-age]")) {
      time.textContent = age(Date.now() / 1000 - Number(time.dateTime));
    }
  }, 15_000);

  // --- Buttons.
  const say = (button, words) => {
    button.classList.add("done");
    document.getElementById("said").textContent = words;
    const label = button.querySelector("span");
    const before = label?.textContent;
    if (label) label.textContent = words;
    setTimeout(() => {
      button.classList.remove("done");
      document.getElementById("said").textContent = "";
      if (label) label.textContent = before;
    }, 1500);
  };
  const copy = async (button, text) => {
    try {
      await navigator.clipboard.writeText(text);
    } catch { // only secure pages have a clipboard; the older way works on all
      const field = document.body.appendChild(Object.assign(document.createElement("textarea"), { value: text }));
      field.select();
      document.execCommand("copy");
      field.remove();
    }
    say(button, "Copied");
  };
  const whole = async (address) => (await fetch(address)).text();
  const isDark = () => root.dataset.theme ? root.dataset.theme === "dark" : matchMedia("(prefers-color-scheme: dark)").matches;
  const actions = {
    help: () => { // only the keys that do something on this page
      for (const it of document.querySelectorAll("#help [data-for]")) it.hidden = !document.querySelector(it.dataset.for);
      document.getElementById("help").showModal();
    },
    theme: () => {
      root.dataset.theme = isDark() ? "light" : "dark";
      try { localStorage.setItem("logs-ui-theme", root.dataset.theme); } catch { /* then only for this page */ }
    },
    "copy-link": (button) => copy(button, new URL(document.querySelector("[data-link]")?.dataset.link ?? location.href, location.href).href),
    "copy-whole": async (button) => copy(button, await whole(button.dataset.from)),
    "copy-text": async (button) => {
      const texts = [...button.closest(".card").querySelectorAll(".text")];
      // Of one that is cut here, all that there is.
      const link = (text) => text.nextElementSibling?.matches(".whole") && text.nextElementSibling.href;
      copy(button, (await Promise.all(texts.map((text) => link(text) ? whole(link(text)) : text.textContent))).join("\n\n"));
    },
    "copy-from": (button) => copy(button, document.getElementById(button.dataset.from).textContent),
    "close-flash": () => document.getElementById("flash").replaceChildren(),
  };
  document.addEventListener("click", (event) => {
    const button = event.target.closest("[data-do]");
    if (button) actions[button.dataset.do](button);
    // Another rollout or group replaces the address: Back leads to the table at once.
    const link = event.target.closest(".neighbours a");
    if (!link || event.defaultPrevented || event.ctrlKey || event.metaKey || event.shiftKey) return; // another tab
    event.preventDefault();
    location.replace(link.getAttribute("href"));
  });

  // Both halves of a name that is cut in its middle are boxes, between which a browser would copy a line break.
  document.addEventListener("copy", (event) => {
    const selection = getSelection();
    if (isWriting(event.target) || ![...document.querySelectorAll(".middle")].some((it) => selection.containsNode(it, true))) return;
    root.toggleAttribute("data-copies", true);
    event.clipboardData.setData("text/plain", selection.toString());
    root.toggleAttribute("data-copies", false);
    event.preventDefault();
  });

  // --- Keys.
  const step = (selector, by, focus) => {
    const all = [...document.querySelectorAll(selector)];
    const top = (element) => element.getBoundingClientRect().top;
    const below = parseFloat(getComputedStyle(root).scrollPaddingTop) + 20; // where one stops that is scrolled to
    const here = focus ? all.indexOf(document.activeElement) : all.findLastIndex((e) => top(e) < below);
    const next = all[Math.min(Math.max(here + by, 0), all.length - 1)];
    if (focus) {
      next?.focus({ preventScroll: true });
      next?.closest("tr").scrollIntoView({ block: "nearest" });
    } else next?.scrollIntoView({ block: "start" });
  };
  const keys = {
    j: () => step(".row-link", 1, true),
    k: () => step(".row-link", -1, true),
    n: () => step(".timeline .card", 1, false),
    p: () => step(".timeline .card", -1, false),
    s: () => document.activeElement.closest("tr")?.querySelector(".star")?.click(),
    t: () => actions.theme(),
    "?": () => actions.help(),
    "/": () => {
      const line = document.getElementById("where");
      if (line) return line.focus();
      const panel = document.getElementById("filters-panel");
      if (panel) panel.open = true;
      document.querySelector("#filters input:not([type=hidden])")?.focus();
    },
    Escape: () => document.activeElement?.blur?.(),
  };
  const keyed = (key) => document.querySelector(`[data-key~="${CSS.escape(key)}"]`);
  const press = (key) => { // a switch waits for the one before it: its address then says both
    const link = keyed(key);
    if (!link?.closest(".ways")?.querySelector(".htmx-request")) link?.click();
    else document.addEventListener("htmx:after:swap", () => press(key), { once: true });
  };
  document.addEventListener("keydown", (event) => {
    if (event.ctrlKey || event.metaKey || event.altKey || document.querySelector("dialog[open]")) return;
    if (isWriting(event.target) && event.key !== "Escape") return;
    const link = keyed(event.key);
    if (!link && !(event.key in keys)) return;
    if (event.key !== "Escape") event.preventDefault();
    if (link) press(event.key);
    else keys[event.key]();
  });

  // --- What sticks above a rollout is as high as its lines are many: whatever scrolls into view stops below it.
  const bars = document.querySelector(".bars");
  const measure = () => root.style.setProperty("--bars", `${bars.getBoundingClientRect().height}px`);
  if (bars) {
    measure();
    new ResizeObserver(measure).observe(bars);
  }

  // --- What an address names is unfolded.
  const unfold = () => {
    const named = document.getElementById(location.hash.slice(1));
    if (named?.tagName !== "DETAILS" || named.open) return;
    named.open = true;
    named.scrollIntoView();
  };
  addEventListener("hashchange", unfold);
  unfold();

  // --- A failing rollout opens where it failed, unless the address names another place.
  const first = document.querySelector("[data-first-anomaly]");
  if (first && !location.hash && performance.getEntriesByType("navigation")[0]?.type !== "back_forward") {
    first.scrollIntoView({ block: "nearest" }); // what fits the window stays as it is
  }
}
