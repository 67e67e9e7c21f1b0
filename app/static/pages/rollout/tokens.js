// The token view: heat by the CSS Custom Highlight API, so that 32,000 tokens stay one text node a segment; and the
// figures of the token under the pointer, or where the keyboard stands.
"use strict";
{
  const LEVELS = [0.1, 0.5, 1, 2, 4]; // as token_view.py has them
  const can = "highlights" in CSS;

  // --- What the server wrote: see `Spelling` there.
  const bytes = (base64) => Uint8Array.from(atob(base64), (letter) => letter.charCodeAt(0));
  const numbers = (base64) => {
    const found = [];
    // A number is written seven bits to a byte, the lowest first; a byte below 128 ends it.
    let value = 0, place = 1;
    for (const byte of bytes(base64)) {
      value += (byte & 127) * place;
      place *= 128;
      if (byte < 128) {
        found.push(value);
        value = 0;
        place = 1;
      }
    }
    return found;
  };
  const halves = (base64) => {
    // A log-prob is a float16: one bit of sign, five of the exponent and ten of the fraction.
    const data = new DataView(bytes(base64).buffer);
    return Float32Array.from({ length: data.byteLength / 2 }, (_, i) => {
      const word = data.getUint16(2 * i, true);
      const sign = word >> 15 ? -1 : 1, exponent = (word >> 10) & 31, rest = word & 1023;
      if (exponent === 31) return rest ? NaN : sign * Infinity;
      return sign * (exponent ? 2 ** (exponent - 15) * (1 + rest / 1024) : 2 ** -14 * (rest / 1024));
    });
  };
  const read = (element) => {
    const { kind, first, ids, lengths, backs, marks, logps } = element.dataset;
    element.normalize(); // a parser may end a text node at 65,536 characters
    const segment = { element, kind, first: Number(first), node: element.firstChild, ids: numbers(ids), starts: [], ends: [] };
    // A token may begin before the end of the one before, as parts of one character do: `backs` says by how much.
    const back = backs ? numbers(backs) : null;
    let at = 0;
    numbers(lengths).forEach((length, i) => {
      segment.starts.push(at - (back ? back[i] : 0));
      segment.ends.push(at = segment.starts[i] + length);
    });
    segment.marks = numbers(marks);
    segment.logps = logps ? halves(logps) : null;
    return segment;
  };

  let segments = [], byNode = new Map(), special = new Set();
  let here = null; // the token that keys and clicks lead to: [segment, index]
  let level = 0; // from which on a token counts as a surprise; 0 before one was chosen

  const levelOf = (segment, i) => {
    const surprise = -segment.logps[i];
    let found = 0;
    while (found < LEVELS.length && surprise >= LEVELS[found]) found += 1;
    return found;
  };

  // --- Paint. Neighbours of one colour share a range; of parts of one character the strongest shows.
  const range = (node, start, end) => new StaticRange({ startContainer: node, startOffset: start, endContainer: node, endOffset: end });
  const show = (name, ranges, priority) => {
    const highlight = new Highlight();
    for (const each of ranges) highlight.add(each);
    highlight.priority = priority;
    CSS.highlights.set(name, highlight);
  };
  const runs = (segment, colour) => {
    const found = []; // of [colour, start, end]
    segment.starts.forEach((start, i) => {
      const own = colour(segment, i);
      if (!own || start === segment.ends[i]) return;
      const last = found.at(-1);
      if (last && last[0] === own && last[2] >= start) last[2] = segment.ends[i];
      else found.push([own, start, segment.ends[i]]);
    });
    return found;
  };
  const paint = () => {
    const heat = LEVELS.map(() => []), specials = [], labels = [], ends = [];
    for (const segment of segments) {
      if (segment.logps) for (const [own, start, end] of runs(segment, levelOf)) heat[own - 1].push(range(segment.node, start, end));
      for (const [, start, end] of runs(segment, (it, i) => special.has(it.ids[i]))) specials.push(range(segment.node, start, end));
      let at = 0;
      for (let i = 0; i < segment.marks.length; i += 2) {
        at += segment.marks[i];
        (segment.node.data[at] === "↵" ? ends : labels).push(range(segment.node, at, at + segment.marks[i + 1]));
      }
    }
    heat.forEach((ranges, i) => show(`heat-${i + 1}`, ranges, i + 1));
    show("token-special", specials, -2); // a strong colour has the last word on what is written in it
    show("token-label", labels, -1);
    show("token-end", ends, -1);
  };

  // --- Figures of one token.
  const UNSEEN = /[\p{Cc}\p{Cf}\p{Zl}\p{Zp}\uFE00-\uFE0F]/gu; // as a joiner within an emoji, which is shown as it is
  const minus = (text) => text.replace("-", "\u2212");
  const percent = (p) => `${(100 * p).toFixed(p >= 0.1 ? 1 : p >= 0.001 ? 2 : 4)} %`;
  const quoted = ([segment, i]) => {
    const text = segment.node.data.slice(segment.starts[i], segment.ends[i]).replace(/^↵(?=\n)/, "");
    const short = text.length > 24 ? `${text.slice(0, 23)}…` : text;
    return `"${short.replaceAll("\n", "\\n").replaceAll("\t", "\\t").replace(UNSEEN, (letter) => `⟨${letter.codePointAt(0).toString(16).toUpperCase()}⟩`)}"`;
  };
  const parts = ([segment, i]) => {
    const same = (j) => segment.starts[j] === segment.starts[i] && segment.ends[j] === segment.ends[i];
    let first = i, last = i;
    while (first > 0 && same(first - 1)) first -= 1;
    while (last < segment.ids.length - 1 && same(last + 1)) last += 1;
    return first === last || segment.starts[i] === segment.ends[i] ? "" : ` part ${i - first + 1} of ${last - first + 1}`;
  };
  const words = (token) => {
    const [segment, i] = token;
    const logp = segment.logps?.[i];
    const found = [
      `${segment.kind === "prompt" ? "prompt token" : "token"} ${segment.first + i}`,
      `id ${segment.ids[i] | 0}${special.has(segment.ids[i]) ? " special" : ""}`,
    ];
    if (segment.logps) found.push(`log p ${Number.isNaN(logp) ? "NaN" : minus(logp.toFixed(3))}`, `p ${Number.isNaN(logp) ? "NaN" : percent(Math.exp(logp))}`);
    if (segment.kind !== "prompt") found.push(`mask ${segment.kind === "sampled" ? 1 : 0}`);
    return [...found, quoted(token) + parts(token)];
  };
  const say = (token) => {
    const output = document.getElementById("token-said");
    if (output) output.textContent = token ? words(token).join("  ") : "";
    if (can) show("token-here", token ? [range(token[0].node, token[0].starts[token[1]], token[0].ends[token[1]])] : [], 9);
  };

  // --- The token under the pointer.
  const within = (node, offset, x, y) => {
    if (offset < 0 || offset >= node.length) return false;
    const letter = document.createRange();
    letter.setStart(node, offset);
    letter.setEnd(node, offset + 1);
    return [...letter.getClientRects()].some((box) => x >= box.left && x <= box.right && y >= box.top && y <= box.bottom);
  };
  const tokenAt = (segment, offset) => {
    let low = 0, high = segment.starts.length - 1;
    while (low < high) { // the last that begins at or before it
      const middle = (low + high + 1) >> 1;
      if (segment.starts[middle] <= offset) low = middle;
      else high = middle - 1;
    }
    while (low > 0 && segment.starts[low] === segment.ends[low]) low -= 1; // of those that say nothing, none is there
    while (low > 0 && segment.starts[low - 1] === segment.starts[low] && segment.ends[low - 1] === segment.ends[low]) low -= 1;
    return [segment, low];
  };
  const pointed = ({ clientX, clientY }) => {
    const caret = document.caretPositionFromPoint?.(clientX, clientY) ?? document.caretRangeFromPoint?.(clientX, clientY);
    const node = caret?.offsetNode ?? caret?.startContainer, offset = caret?.offset ?? caret?.startOffset;
    const segment = byNode.get(node);
    if (!segment) return null;
    const under = [offset, offset - 1].find((each) => within(node, each, clientX, clientY));
    return under === undefined ? null : tokenAt(segment, under);
  };

  // --- From token to token.
  const isShown = (segment) => segment.element.closest("details")?.open !== false;
  const bounds = ([segment, i]) => {
    const whole = document.createRange();
    whole.setStart(segment.node, segment.starts[i]);
    whole.setEnd(segment.node, segment.ends[i]);
    return whole.getBoundingClientRect();
  };
  const go = (token) => {
    here = token;
    say(token);
    document.getElementById("said").textContent = words(token).join(", ");
    const box = bounds(token), top = document.getElementById("token-bar").getBoundingClientRect().bottom + 8;
    if (box.top < top || box.bottom > innerHeight - 12) scrollBy({ top: box.top - (top + innerHeight) / 2 });
  };
  const following = (by, wanted) => { // the next token that is wanted, round the end
    const all = segments.filter(isShown);
    let at = here ? all.indexOf(here[0]) : by > 0 ? 0 : all.length - 1;
    let i = here && at >= 0 ? here[1] : by > 0 ? -1 : all.at(at)?.ids.length;
    at = Math.max(at, 0);
    // The search goes through all segments and once round the end, back to the token where it began.
    for (let turns = 0; turns <= all.length;) {
      i += by;
      if (i >= 0 && i < all[at]?.ids.length) {
        if (wanted(all[at], i)) return [all[at], i];
      } else {
        at = (at + by + all.length) % all.length;
        i = by > 0 ? -1 : all[at].ids.length;
        turns += 1;
      }
    }
    return null;
  };
  const chosenLevel = () => level || Number([...document.querySelectorAll("[data-level]:enabled")].at(-1)?.dataset.level ?? 0);
  const choose = (chosen) => {
    level = chosen;
    for (const button of document.querySelectorAll("[data-level]")) button.setAttribute("aria-pressed", String(Number(button.dataset.level) === chosen));
  };
  const surprise = (by) => {
    const least = chosenLevel();
    if (!least) return;
    choose(least);
    const token = following(by, (segment, i) => segment.logps && levelOf(segment, i) >= least);
    if (token) go(token);
  };

  document.addEventListener("click", (event) => {
    const button = event.target.closest("[data-token-step], [data-level]");
    if (button?.dataset.level) choose(Number(button.dataset.level));
    if (button) surprise(Number(button.dataset.tokenStep ?? 1));
    else if (event.target.closest(".spelt") && getSelection().type !== "Range") {
      here = pointed(event);
      say(here);
    }
  });
  let waiting = null;
  document.addEventListener("pointermove", (event) => {
    waiting ??= requestAnimationFrame(() => {
      waiting = null;
      if (segments.length) say((event.target.closest?.(".spelt") && pointed(event)) || here);
    });
  });
  document.addEventListener("keydown", (event) => {
    if (!here || event.ctrlKey || event.metaKey || event.altKey || document.querySelector("dialog[open]")) return;
    if (event.target.matches?.("input, select, textarea")) return;
    if (event.key === "Escape") say(here = null);
    if (event.key !== "ArrowRight" && event.key !== "ArrowLeft") return;
    event.preventDefault();
    go(following(event.key === "ArrowRight" ? 1 : -1, () => true));
  });

  const begin = () => {
    const root = document.getElementById("tokens");
    segments = [...(root?.querySelectorAll(".spelt") ?? [])].filter((element) => element.firstChild).map(read);
    byNode = new Map(segments.map((segment) => [segment.node, segment]));
    // `numbers` reads ids as unsigned numbers, so a negative id is made unsigned here, too.
    special = new Set((root?.dataset.special || "").split(" ").filter(Boolean).map((id) => Number(id) >>> 0));
    here = null;
    if (can) paint();
    else for (const hint of document.querySelectorAll(".no-highlights")) hint.hidden = false;
  };
  begin();
  document.addEventListener("htmx:after:swap", begin); // a rollout that ran has tokens when it returns
}
