// Runs compared: the values under the pointer, and with a click the nearest run's rollouts of that step.
"use strict";
{
  // The controls stand all over the page, and belong to one form: what changes in them does not rise to it.
  document.addEventListener("change", (event) => {
    if (event.target.form?.id === "choice") event.target.form.requestSubmit();
  });

  const numbers = (text) => text.split(" ").map(Number);
  const nearest = (places, at) => places.reduce((best, place, i) => Math.abs(place - at) < Math.abs(places[best] - at) ? i : best, 0);
  const curves = (plot) => [...plot.querySelectorAll(".key")].map((key) => ({
    key,
    output: key.querySelector("output"),
    places: numbers(key.dataset.places),
    steps: key.dataset.steps.split(" "),
    values: key.dataset.values.split(" "),
  })).filter((curve) => curve.key.dataset.places);

  const leave = () => {
    for (const plot of document.querySelectorAll("[data-plot][data-at]")) {
      for (const { output } of curves(plot)) output.textContent = output.dataset.last;
      plot.removeAttribute("data-at");
    }
  };
  const pointed = (event) => {
    const svg = event.target.closest?.("[data-plot] svg[tabindex]");
    if (!svg) return null;
    const box = svg.getBoundingClientRect();
    return { plot: svg.closest("[data-plot]"), at: 100 * (event.clientX - box.left) / box.width, up: (event.clientY - box.top) / box.height };
  };
  const show = ({ plot, at }) => {
    for (const end of ["x1", "x2"]) plot.querySelector(".cursor").setAttribute(end, at);
    for (const { output, places, steps, values } of curves(plot)) {
      // The text of the last step is kept, to be shown again when the pointer leaves.
      output.dataset.last ??= output.textContent;
      const i = nearest(places, at);
      output.textContent = `${values[i] === "-" ? "\u2014" : values[i].replaceAll("-", "\u2212")} at step ${steps[i]}`;
    }
    plot.dataset.at = at;
  };
  const open = ({ plot, at }) => {
    const found = curves(plot).map(({ key, places, steps }) => {
      const i = nearest(places, at);
      return { far: Math.abs(places[i] - at), address: key.dataset.rollouts, step: steps[i] };
    }).sort((a, b) => a.far - b.far)[0];
    if (found) location.href = `${found.address}?step_min=${found.step}&step_max=${found.step}`;
  };
  document.addEventListener("pointermove", (event) => {
    const here = pointed(event);
    if (here) show(here);
    else if (!document.activeElement?.closest?.("[data-plot]")) leave();
  });
  document.addEventListener("click", (event) => {
    const here = pointed(event);
    if (here) open(here);
  });
  document.addEventListener("focusout", (event) => event.target.closest?.("[data-plot]") && leave());
  document.addEventListener("keydown", (event) => {
    const plot = event.target.closest?.("[data-plot]");
    if (!plot || event.ctrlKey || event.metaKey || event.altKey) return;
    const places = [...new Set(curves(plot).flatMap((curve) => curve.places))].sort((a, b) => a - b);
    const here = "at" in plot.dataset ? nearest(places, Number(plot.dataset.at)) : -1;
    const to = { ArrowRight: here + 1, ArrowLeft: here - 1, Home: 0, End: places.length - 1 }[event.key];
    if (to !== undefined) show({ plot, at: places[Math.min(Math.max(to, 0), places.length - 1)] });
    else if (event.key === "Enter" && here >= 0) open({ plot, at: places[here] });
    else return;
    event.preventDefault();
  });
}
