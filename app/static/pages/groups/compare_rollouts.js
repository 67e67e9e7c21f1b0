// Two rollouts open where they part, unless the reader comes back to where they were.
"use strict";
{
  const parting = document.querySelector("[data-parts]");
  if (parting && !location.hash && performance.getEntriesByType("navigation")[0]?.type !== "back_forward") {
    const box = parting.getBoundingClientRect();
    if (box.top > innerHeight - 120) parting.scrollIntoView({ block: "start" }); // what fits the window stays as it is
  }
}
