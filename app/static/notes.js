// A note is saved when the reader leaves it, by Ctrl+Enter, and when the page goes out of sight; and never lost.
"use strict";
{
  const field = () => document.getElementById("note");
  const isNote = (event) => event.detail.ctx?.sourceElement?.id === "note-form";
  const isSaved = () => !field() || field().value === field().defaultValue;
  const save = () => { if (!isSaved()) field().form.requestSubmit(); };
  let sent = "";

  document.addEventListener("keydown", (event) => {
    if (event.target.id === "note" && event.key === "Enter" && (event.ctrlKey || event.metaKey)) save();
  });
  document.addEventListener("click", (event) => { // of the key e: to write on
    if (event.target.htmlFor === "note") field().setSelectionRange(field().value.length, field().value.length);
  });
  document.addEventListener("visibilitychange", () => { if (document.hidden) save(); });
  addEventListener("beforeunload", (event) => { if (!isSaved()) event.preventDefault(); });

  document.addEventListener("htmx:config:request", (event) => {
    if (!isNote(event)) return;
    sent = field().value;
    event.detail.ctx.request.keepalive = sent.length < 5000; // it outlives the page then; browsers keep 64 kB at most
  });
  const failed = () => {
    const said = document.getElementById("note-said");
    said.classList.add("failed");
    said.textContent = "Not saved. Your text is still here: Ctrl+Enter tries again.";
  };
  document.addEventListener("htmx:error", (event) => { if (isNote(event)) failed(); });
  document.addEventListener("htmx:after:request", (event) => {
    if (!isNote(event)) return;
    if (event.detail.ctx.response.status < 400) field().defaultValue = sent;
    else failed();
  });
}
