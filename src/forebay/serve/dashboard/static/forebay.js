// Live pages and shortcuts. Every page works without this file; nothing here knows what a page shows.
"use strict";

// Make `old` look like `fresh`, changing as little as possible, so that focus, selection and open details stay.
const morph = (old, fresh) => {
  if (old.nodeType !== fresh.nodeType || old.nodeName !== fresh.nodeName) return old.replaceWith(fresh);
  if (old.nodeType !== Node.ELEMENT_NODE) {
    if (old.data !== fresh.data) old.data = fresh.data;
    return;
  }
  const kept = old.nodeName === "DETAILS" ? ["open"] : old.hasAttribute("tabindex") ? ["tabindex", "class"] : [];
  for (const { name } of [...old.attributes]) if (!fresh.hasAttribute(name) && !kept.includes(name)) old.removeAttribute(name);
  for (const { name, value } of [...fresh.attributes]) if (old.getAttribute(name) !== value) old.setAttribute(name, value);
  const before = [...old.childNodes], after = [...fresh.childNodes];
  after.forEach((child, place) => (before[place] ? morph(before[place], child) : old.append(child)));
  before.slice(after.length).forEach((child) => child.remove());
};

const live = document.getElementById("live");
const pulse = document.querySelector(".pulse");
let held = false;
const say = (word, state) => {
  if (pulse) { pulse.textContent = word; pulse.dataset.state = state; }
};

if (document.body.hasAttribute("data-live") && window.EventSource) {
  let source;
  const follow = () => {
    source = new EventSource(location.href);
    source.onopen = () => say("live", "on");
    source.onmessage = (event) => {
      if (held) return;
      const fresh = document.createElement("div");
      fresh.id = "live";
      fresh.innerHTML = JSON.parse(event.data);
      morph(live, fresh);
      document.dispatchEvent(new Event("forebay:live"));
    };
    source.addEventListener("over", () => { source.close(); location.reload(); });
    source.onerror = () => say(source.readyState === EventSource.CLOSED ? "as loaded" : "reconnecting", "off");
  };
  const leave = () => { source?.close(); source = undefined; };
  document.addEventListener("visibilitychange", () => (document.hidden ? leave() : source || follow()));
  addEventListener("pagehide", leave);
  follow();
}

// Shortcuts: none while a field has the focus, none with a modifier.
const rows = () => [...document.querySelectorAll("[data-row]")];
const step = (by) => {
  const all = rows();
  if (!all.length) return;
  const at = all.findIndex((row) => row.contains(document.activeElement));
  const row = all[Math.min(all.length - 1, Math.max(0, at + by))];
  const target = row.querySelector("a, button") || row;
  if (target === row) row.tabIndex = -1;
  target.focus();
  row.scrollIntoView({ block: "nearest" });
};
let going = 0;
document.addEventListener("keydown", (event) => {
  if (event.ctrlKey || event.metaKey || event.altKey) return;
  if (event.target.closest("input, textarea, select")) {
    if (event.key === "Escape") event.target.blur();
    return;
  }
  const dialog = document.getElementById("shortcuts");
  if (dialog.open) return;
  if (Date.now() - going < 1000) {
    going = 0;
    const goal = document.querySelector(`nav [data-key="${CSS.escape(event.key)}"]`);
    if (goal) { event.preventDefault(); location.assign(goal.href); }
    return;
  }
  const acts = {
    g: () => { going = Date.now(); },
    j: () => step(1),
    k: () => step(-1),
    "/": () => document.querySelector("[data-search]")?.focus(),
    "?": () => dialog.showModal(),
    ".": () => { held = !held; say(held ? "paused" : "live", held ? "off" : "on"); },
  };
  if (acts[event.key]) { event.preventDefault(); acts[event.key](); }
});
