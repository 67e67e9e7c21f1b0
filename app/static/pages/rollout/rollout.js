// While a long rollout is filled, unfolded or refreshed, it keeps the turns that it shows where they are in the window.
"use strict";
{
  const place = (element) => element.getBoundingClientRect().top;
  const isWhole = (ctx) => ["rollout", "main"].includes(ctx?.target?.id);
  let fixed = null; // the card that stays where it is, and its place

  document.addEventListener("htmx:config:request", (event) => {
    const { ctx } = event.detail;
    const gaps = [...document.querySelectorAll("[data-gap]")];
    if (isWhole(ctx) && gaps.length) ctx.request.body.set("gaps", gaps.map((gap) => gap.dataset.gap).join(","));
  });
  // A jump to a turn and another view replace the address: Back leads to the table at once.
  // So does a switch that htmx does not know yet, since it came with the last swap.
  document.addEventListener("click", (event) => {
    const link = event.target.closest?.(".outline a, .failed > header a, .tabs a, nav.ways a");
    if (!link || event.defaultPrevented || event.ctrlKey || event.metaKey || event.shiftKey) return; // another tab
    event.preventDefault();
    location.replace(link.getAttribute("href"));
  });
  document.addEventListener("htmx:before:swap", (event) => {
    const { ctx } = event.detail;
    const below = document.querySelector(".bars").getBoundingClientRect().bottom;
    const cards = [...document.querySelectorAll(".timeline .card")];
    // A gap fills below the turn that one reads, and above what follows only where nothing before it is in sight.
    const before = ctx.target?.matches?.(".gap") && ctx.target.previousElementSibling;
    const after = before && before.getBoundingClientRect().bottom <= below && ctx.target.nextElementSibling;
    const card = after || before || (isWhole(ctx) && scrollY > 0 && (cards.find((it) => place(it) >= below) ?? cards.at(-1)));
    fixed = card ? { id: card.id, at: place(card) } : null;
    if (card) document.documentElement.style.overflowAnchor = "none"; // the browser would move it a second time
  });
  document.addEventListener("htmx:after:swap", (event) => {
    const card = fixed && document.getElementById(fixed.id);
    if (card) scrollBy(0, place(card) - fixed.at);
    fixed = null;
    requestAnimationFrame(() => { document.documentElement.style.overflowAnchor = ""; });
    event.detail.ctx.sourceElement?.matches?.(".card details") && event.detail.ctx.sourceElement.classList.add("filled");
  });
}
