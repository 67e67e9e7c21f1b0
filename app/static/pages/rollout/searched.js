// The words that a filter looks for are marked in the rollout that it found, as the index finds them: in either case, with
// or without accents, whatever signs stand between the words of a phrase. Nothing in the page is changed for it.
"use strict";
{
  const LETTER = "[\\p{L}\\p{N}]", OTHER = "[^\\p{L}\\p{N}]";
  // A letter is replaced by one character, so that a place in the folded text is the same place in the text.
  const folded = (text) => text.replace(/[\u00c0-\u024f\u1e00-\u1eff]/g, (letter) => letter.normalize("NFD")[0]);
  const pattern = (phrase) => {
    const words = folded(phrase).match(new RegExp(`${LETTER}+`, "gu"));
    return words && `(?<!${LETTER})${words.join(`${OTHER}+`)}${phrase.endsWith("*") ? `${LETTER}*` : `(?!${LETTER})`}`;
  };

  const found = () => {
    const main = document.querySelector("[data-searched]");
    const wanted = JSON.parse(main.dataset.searched);
    const ranges = [], known = {};
    // A field of one role looks at its texts alone.
    const of = (by) => known[by] ??= new RegExp(
      wanted.filter(([field]) => field === "text" || field === by).map(([, phrase]) => pattern(phrase)).filter(Boolean).join("|") || "(?!)", "giu");
    const texts = document.createTreeWalker(main, NodeFilter.SHOW_TEXT, (node) =>
      node.parentElement.closest(".text, .error-line") ? NodeFilter.FILTER_ACCEPT : NodeFilter.FILTER_SKIP);
    while (texts.nextNode()) {
      const by = texts.currentNode.parentElement.closest("[data-said-by]")?.dataset.saidBy;
      for (const hit of folded(texts.currentNode.data).matchAll(of(by))) {
        const range = document.createRange();
        range.setStart(texts.currentNode, hit.index);
        range.setEnd(texts.currentNode, hit.index + hit[0].length);
        ranges.push(range);
      }
    }
    return ranges;
  };
  const mark = () => {
    const ranges = found();
    if ("highlights" in CSS) CSS.highlights.set("searched", new Highlight(...ranges));
    return ranges;
  };

  // The page opens at the first of them that is not in the prompt, even where that is folded.
  const ranges = mark();
  const first = ranges.find((it) => !it.startContainer.parentElement.closest("[data-said-by=prompt]")) ?? ranges[0];
  const begins = !location.hash && performance.getEntriesByType("navigation")[0]?.type !== "back_forward";
  if (first && begins) {
    const place = first.startContainer.parentElement;
    for (let fold = place.closest("details"); fold; fold = fold.parentElement.closest("details")) fold.open = true;
    const { top, bottom } = first.getBoundingClientRect();
    const above = parseFloat(getComputedStyle(document.documentElement).scrollPaddingTop); // what sticks there
    if (top < above || bottom > innerHeight) scrollBy(0, top - innerHeight / 3);
  }
  document.addEventListener("htmx:after:swap", mark);
}
