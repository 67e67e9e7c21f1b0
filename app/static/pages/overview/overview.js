// The charts of an overview: drawn on a canvas, with one cursor for all, a click and a drag that lead to rollouts.
"use strict";
{
  const MINUS = "\u2212";
  const signed = (text) => text.replace("-", MINUS);
  const fixed = (value, digits) => signed(value.toFixed(digits));
  const duration = (s) => s < 0.9995 ? `${(s * 1000).toFixed(0)} ms` : s < 59.95 ? `${s.toFixed(1)} s` : `${Math.floor(s / 60)}m ${String(Math.round(s) % 60).padStart(2, "0")}s`;
  const tokens = (n) => n >= 1000 ? `${(n / 1000).toFixed(1)}k` : n >= 100 ? n.toFixed(0) : n.toFixed(1);
  const share = (value) => value > 0 && value < 0.01 ? "<1%" : value > 0.99 && value < 1 ? ">99%" : `${(100 * value).toFixed(0)}%`;
  const WRITE = { number: (value) => fixed(value, 3), count: tokens, duration, share };
  const TICKS = {
    number: (value) => signed(String(Number(value.toPrecision(6)))),
    count: (n) => n >= 1000 ? `${Number((n / 1000).toPrecision(3))}k` : String(Number(n.toPrecision(6))),
    duration: (s) => s < 1 ? `${Number((s * 1000).toPrecision(2))} ms` : s < 60 ? `${Number(s.toPrecision(3))} s` : `${Number((s / 60).toPrecision(3))} m`,
    share: (value) => `${Math.round(100 * value)}%`,
  };

  const overview = () => document.getElementById("overview");
  const numbers = (text) => text.split(" ").map((word) => word === "-" ? null : Number(word));
  const steps = () => (overview()?.dataset.steps ?? "").split(" ").filter(Boolean).map(Number);
  const address = (pattern, first, last) => {
    const [from, to] = overview().dataset.places.split(" ");
    return pattern.replaceAll(from, first).replaceAll(to, last);
  };
  const open = (first, last, pattern = overview().dataset.rollouts) => { location.href = address(pattern, first, last); };

  // --- What is chosen, by steps, so that it stays where it is when more steps come.
  let chosen = null; // [first, last]
  let pointed = null; // the step under the pointer or the keyboard
  const weighted = new Set(); // charts of reward functions that show their parts of the reward
  const plots = new Map(); // figure -> { plot, shape }

  // --- Colours are the theme's: read from the legend whenever a chart is drawn.
  const colour = (key) => getComputedStyle(key).color;
  const faded = (key, alpha) => colour(key).replace(/^rgb\(([^)]*)\)$/, `rgba($1, ${alpha})`);
  const dim = (figure) => () => getComputedStyle(figure.querySelector(".at")).color;
  const line = (figure) => () => getComputedStyle(figure.querySelector(".as-table")).borderTopColor;
  const keysOf = (figure) => [...figure.querySelectorAll(".key")];

  const valuesOf = (figure, key) => numbers((weighted.has(figure.id) && key.dataset.weighted) || key.dataset.values);
  const dataOf = (figure) => {
    const data = [steps()];
    // uPlot draws no stacks, so each area gets the sum of its own value and of those below it.
    let below = null;
    for (const key of keysOf(figure)) {
      const values = valuesOf(figure, key);
      if (key.dataset.style === "area") {
        below = values.map((value, i) => (below?.[i] ?? 0) + (value ?? 0));
        data.push(below);
      } else data.push(values);
      if (key.dataset.high) data.push(numbers(key.dataset.high));
    }
    return data;
  };

  const WIDTHS = { thin: 1, thick: 2.2, line: 1.6, area: 1, band: 0 };
  const seriesOf = (figure) => {
    const [series, bands] = [[{}], []];
    for (const key of keysOf(figure)) {
      const { style } = key.dataset;
      const dash = key.querySelector("line")?.getAttribute("stroke-dasharray");
      const place = series.length;
      const line = { stroke: () => colour(key), width: WIDTHS[style], spanGaps: false };
      if (dash) line.dash = dash.split(" ").map(Number);
      if (style === "thin") line.stroke = () => faded(key, 0.6);
      line.points = style === "band" || style === "area" ? { show: false } : { size: 5, fill: () => colour(key) };
      series.push(line);
      // A band is two series, its lower and its upper end, between which uPlot fills.
      if (style === "band") {
        series.push({ ...line });
        bands.push({ series: [place + 1, place], fill: () => faded(key, 0.16) });
      } else if (style === "area") {
        if (place === 1) line.fill = () => faded(key, 0.6);
        else bands.push({ series: [place, place - 1], fill: () => faded(key, 0.6) });
      }
    }
    return { series, bands };
  };

  const wholeRange = (u, low, high) => low === high ? [low - 0.5, high + 0.5] : [low, high];
  const valueRange = (figure) => figure.hasAttribute("data-stacked") ? () => [0, 1]
    : (u, low, high) => {
      if (low === null) return [0, 1];
      const room = (high - low) * 0.08 || Math.abs(high) * 0.1 || 0.5;
      const floor = low >= 0 && low - room < 0 ? 0 : low - room;
      return [floor, high + room];
    };
  const INTEGERS = [1, 2, 5, 10, 20, 25, 50, 100, 200, 250, 500, 1000, 2000, 2500, 5000, 10000, 20000, 50000, 100000, 1000000];

  const options = (figure, box) => {
    const grid = { stroke: line(figure), width: 1 };
    const axis = { stroke: dim(figure), font: '11px Inter, system-ui, sans-serif', ticks: { show: false } };
    return {
      width: box.clientWidth,
      height: box.clientHeight,
      ...seriesOf(figure),
      legend: { show: false },
      padding: [6, 16, 0, 0],
      scales: { x: { time: false, range: wholeRange }, y: { range: valueRange(figure) } },
      axes: [
        { ...axis, grid: { show: false }, size: 22, gap: 4, incrs: INTEGERS, values: (u, at) => at.map((step) => step.toLocaleString("en")) },
        { ...axis, grid, size: 48, gap: 6, space: 28, values: (u, at) => at.map(TICKS[figure.dataset.form]) },
      ],
      cursor: { y: false, drag: { x: true, y: false, setScale: false, dist: 5 }, points: { show: false }, focus: { prox: -1 } },
      hooks: {
        setCursor: [(u) => u === hovered && point(u.cursor.idx === null || u.cursor.left < 0 ? null : u.data[0][u.cursor.idx])],
      },
    };
  };

  // --- One cursor for all.
  let hovered = null;
  const nearest = (known, step) => known.reduce((best, each, i) => Math.abs(each - step) < Math.abs(known[best] - step) ? i : best, 0);
  const point = (step) => {
    if (step === pointed) return;
    pointed = step;
    for (const [figure, { plot }] of plots) {
      if (plot !== hovered) plot.setCursor(step === null ? { left: -10, top: -10 } : { left: plot.valToPos(step, "x"), top: 5 }, false);
      write(figure);
    }
    for (const curve of document.querySelectorAll(".curve")) mark(curve, step);
  };
  const write = (figure) => {
    const known = steps();
    const place = pointed === null ? -1 : known.indexOf(pointed);
    const say = WRITE[figure.dataset.form];
    const said = [];
    for (const key of keysOf(figure)) {
      const output = key.querySelector("output");
      output.dataset.last ??= output.textContent;
      const values = valuesOf(figure, key);
      const at = (list) => place < 0 ? list.findLast((value) => value !== null) ?? null : list[place];
      const text = at(values) === null ? "\u2014" : say(at(values));
      const high = key.dataset.high && at(numbers(key.dataset.high));
      output.textContent = high === undefined ? text : `${text} \u2013 ${high === null ? "\u2014" : say(high)}`;
      said.push(`${key.querySelector(".name").textContent} ${output.textContent}`);
    }
    const box = figure.querySelector(".plot");
    const here = place < 0 ? known.at(-1) : pointed;
    box.setAttribute("aria-valuenow", here);
    box.setAttribute("aria-valuetext", `step ${here}: ${said.join(", ")}`);
    figure.querySelector(".at").textContent = `${place < 0 ? "last step, " : "step "}${here.toLocaleString("en")}`;
  };

  // --- Several steps.
  const choose = (first, last) => {
    chosen = first === null ? null : [Math.min(first, last), Math.max(first, last)];
    for (const { plot } of plots.values()) shade(plot);
    const preview = document.getElementById("preview");
    if (chosen === null) preview?.replaceChildren();
    else htmx.ajax("GET", address(overview().dataset.preview, ...chosen), { target: "#preview", swap: "innerHTML", source: "#preview" });
  };
  const shade = (plot) => {
    if (chosen === null) return plot.setSelect({ left: 0, top: 0, width: 0, height: 0 }, false);
    const [left, right] = chosen.map((step) => plot.valToPos(step, "x"));
    // The box reaches a little beyond its steps, so that a single one can be seen.
    const half = Math.min(4, plot.over.clientWidth / plot.data[0].length / 2);
    const from = Math.max(left - half, 0);
    plot.setSelect({ left: from, top: 0, width: Math.min(right + half, plot.over.clientWidth) - from, height: plot.over.clientHeight }, false);
  };

  const listen = (figure, box, plot) => {
    let pressed = null;
    const stepAt = (event) => {
      const left = event.clientX - plot.over.getBoundingClientRect().left;
      return plot.data[0][plot.posToIdx(Math.min(Math.max(left, 0), plot.over.clientWidth))];
    };
    plot.over.addEventListener("pointerenter", () => { hovered = plot; });
    plot.over.addEventListener("pointerleave", () => { if (pressed === null) { point(null); hovered = null; } });
    plot.over.addEventListener("pointerdown", (event) => { if (event.button === 0) pressed = event; });
    addEventListener("pointerup", (event) => {
      if (pressed === null) return;
      const moved = Math.abs(event.clientX - pressed.clientX) > 5;
      const [from, to] = [stepAt(pressed), stepAt(event)];
      pressed = null;
      // After uPlot's own, which would put its box in the place of ours.
      setTimeout(() => moved ? choose(from, to) : plot.over.contains(event.target) && open(from, from));
    });
    box.addEventListener("keydown", (event) => {
      const known = steps();
      const here = known.indexOf(pointed ?? known.at(-1));
      const moves = { ArrowLeft: here - (pointed === null ? 0 : 1), ArrowRight: here + 1, Home: 0, End: known.length - 1, PageUp: here - 10, PageDown: here + 10 };
      if (event.key in moves) {
        const next = known[Math.min(Math.max(moves[event.key], 0), known.length - 1)];
        if (event.shiftKey) {
          anchor ??= known[here];
          hovered = null;
          point(next);
          choose(anchor, next);
        } else {
          anchor = null;
          hovered = null;
          point(next);
        }
      } else if (event.key === "Enter") open(...(chosen ?? [pointed ?? known.at(-1), pointed ?? known.at(-1)]));
      else if (event.key === "Escape" && (chosen || pointed !== null)) {
        anchor = null;
        choose(null);
        point(null);
      } else return;
      event.preventDefault();
      event.stopPropagation();
    });
    box.addEventListener("blur", () => point(null));
  };
  let anchor = null;

  // --- Made once, and then given what is new.
  const make = (figure) => {
    const box = figure.querySelector(".plot");
    box.replaceChildren();
    const plot = new uPlot(options(figure, box), dataOf(figure), box);
    Object.entries({ tabindex: "0", role: "slider", "aria-describedby": "how", "aria-label": figure.querySelector("h2").textContent })
      .forEach(([name, value]) => box.setAttribute(name, value));
    listen(figure, box, plot);
    new ResizeObserver(() => {
      if (box.clientWidth && box.clientWidth !== plot.width) {
        plot.setSize({ width: box.clientWidth, height: box.clientHeight });
        shade(plot);
      }
    }).observe(box);
    return plot;
  };
  const shapeOf = (figure) => keysOf(figure).map((key) => key.querySelector(".name").textContent + key.className).join("\n");
  const show = () => {
    for (const [figure, { plot }] of plots) {
      if (figure.isConnected) continue;
      plot.destroy();
      plots.delete(figure);
    }
    for (const figure of document.querySelectorAll("figure.chart")) {
      const known = plots.get(figure);
      const shape = shapeOf(figure);
      if (known && known.shape === shape) known.plot.setData(dataOf(figure));
      else {
        known?.plot.destroy();
        plots.set(figure, { plot: make(figure), shape });
      }
      const box = figure.querySelector(".plot");
      box.setAttribute("aria-valuemin", steps()[0]);
      box.setAttribute("aria-valuemax", steps().at(-1));
      figure.querySelector("[data-chart=weighted]")?.setAttribute("aria-pressed", weighted.has(figure.id));
      shade(plots.get(figure).plot);
      write(figure);
    }
  };
  const repaint = () => { for (const { plot } of plots.values()) plot.redraw(); };

  // --- Tables: asked for when they are opened, and again when there is news.
  const fill = (details) => {
    const into = details.querySelector(".table-of");
    if (details.open) htmx.ajax("GET", into.dataset.from, { target: into, swap: "innerHTML", source: into });
  };
  document.addEventListener("toggle", (event) => event.target.matches?.(".as-table") && fill(event.target), true);

  document.addEventListener("htmx:after:swap", (event) => {
    if (event.detail.ctx.target?.id !== "overview") return;
    show();
    for (const details of document.querySelectorAll(".as-table[open]")) fill(details);
  });
  const does = {
    weighted: (button) => {
      const figure = button.closest("figure");
      if (!weighted.delete(figure.id)) weighted.add(figure.id);
      show();
    },
    close: () => { anchor = null; choose(null); },
  };
  document.addEventListener("click", (event) => {
    const button = event.target.closest("[data-chart]");
    if (button) does[button.dataset.chart](button);
  });

  // --- The small curves of what was logged: the same cursor, and a click.
  const mark = (curve, step) => {
    const output = curve.querySelector("output");
    if (step === null) {
      if (curve.dataset.at !== undefined) output.textContent = curve.dataset.at;
      curve.removeAttribute("data-at");
      return;
    }
    const known = curve.dataset.steps.split(" ").map(Number);
    const place = nearest(known, step);
    const value = curve.dataset.values.split(" ")[place];
    curve.dataset.at ??= output.textContent;
    output.textContent = `step ${known[place]}: ${value === "-" ? "\u2014" : signed(value)}`;
    for (const end of ["x1", "x2"]) curve.querySelector(".cursor").setAttribute(end, 100 * (known[place] - known[0]) / (known.at(-1) - known[0] || 1));
  };
  const stepOf = (curve, event) => {
    const known = curve.dataset.steps.split(" ").map(Number);
    const box = curve.querySelector("svg").getBoundingClientRect();
    const along = Math.min(Math.max((event.clientX - box.left) / box.width, 0), 1);
    return known[nearest(known, known[0] + (known.at(-1) - known[0]) * along)];
  };
  let onCurve = false;
  document.addEventListener("pointermove", (event) => {
    const curve = event.target.closest?.(".curve");
    if (curve) {
      hovered = null;
      point(stepOf(curve, event));
    } else if (onCurve) point(null);
    onCurve = Boolean(curve);
  });
  document.addEventListener("click", (event) => {
    const curve = event.target.closest(".curve");
    if (!curve) return;
    const step = stepOf(curve, event);
    location.href = curve.dataset.rollouts.replaceAll(overview().dataset.places.split(" ")[0], step).replaceAll(overview().dataset.places.split(" ")[1], step);
  });

  new MutationObserver(repaint).observe(document.documentElement, { attributes: true, attributeFilter: ["data-theme"] });
  matchMedia("(prefers-color-scheme: dark)").addEventListener("change", repaint);
  show();
  document.fonts.ready.then(repaint);
}
