// Comfort for operators with script: keys, times in the browser's zone, copying. Every page works without it.
"use strict";
(() => {
  const zone = Intl.DateTimeFormat().resolvedOptions().timeZone;
  const zoneOption = document.querySelector("option[data-zone]");
  if (zoneOption && zone && zone !== "UTC") {
    zoneOption.value = zone;
    zoneOption.textContent = zone + " (this browser)";
    zoneOption.hidden = false;
  }
  if (innerWidth < 800) document.querySelector("nav.side details")?.removeAttribute("open");

  const typing = (e) => e.target.closest("input, textarea, select, [contenteditable]");
  let afterG = false;
  let row = -1;
  const rows = () => [...document.querySelectorAll("main tbody tr")];
  const select = (to) => {
    const all = rows();
    if (!all.length) return;
    all[row]?.classList.remove("selected");
    row = Math.max(0, Math.min(all.length - 1, to));
    all[row].classList.add("selected");
    const first = all[row].querySelector("a");
    (first ?? all[row]).focus({preventScroll: true});
    all[row].scrollIntoView({block: "nearest"});
  };
  document.addEventListener("keydown", (e) => {
    if (document.documentElement.dataset.keys === "off") return;
    if (e.ctrlKey || e.metaKey || e.altKey || typing(e)) return;
    if (afterG) {
      afterG = false;
      document.querySelector(`[data-go="${CSS.escape(e.key)}"]`)?.click();
      return;
    }
    switch (e.key) {
      case "g": afterG = true; return;
      case "j": select(row + 1); return;
      case "k": select(row - 1); return;
      case "?": location.href = "/console/help"; return;
    }
    const keyed = document.querySelector(`[data-key="${CSS.escape(e.key)}"]`);
    if (!keyed) return;
    e.preventDefault();
    if (keyed.matches("input")) keyed.focus(); else keyed.click();
  });

  // A page that cannot be refreshed keeps its content, and shows the time of it.
  const main = document.getElementById("main");
  const outdated = (cause, remedy) => {
    const note = main.querySelector("p.outdated") ?? document.createElement("p");
    note.className = "note bad outdated";
    note.role = "alert";
    const text = `${cause} The page shows the state of ${document.getElementById("clock").innerText}. ${remedy}`;
    if (note.textContent !== text) note.textContent = text;
    if (!note.isConnected) main.prepend(note);
  };
  const noServer = () => outdated("The server does not respond.", "The page refreshes automatically.");
  main.addEventListener("htmx:error", (e) => { if (e.target === main) noServer(); });
  main.addEventListener("htmx:response:error", (e) => {
    const status = e.detail.ctx.response.status;
    if (status === 401) outdated("Your session has ended.", "Reload the page to log in.");
    if (status === 502 || status === 504) noServer(); // of a proxy
  });

  // A list that follows new events keeps its newest rows. While the operator reads further down, new rows wait.
  const live = document.getElementById("live");
  if (live) {
    const button = document.createElement("button");
    const state = document.querySelector("p.live");
    const following = state.firstChild.data;
    const report = (isLost, text) => {
      state.classList.toggle("lost", isLost);
      state.firstChild.data = text;
      if (isLost) document.getElementById("announce").textContent = text;
    };
    live.addEventListener("htmx:sse:error", (e) => report(true, "New events do not appear: " + (e.detail.status === 401
      ? "your session has ended. Reload the page to log in. " : "the connection is lost. The page tries again. ")));
    live.addEventListener("htmx:sse:after:connection", () => report(false, following));
    const away = () => live.getBoundingClientRect().top < 0;
    const show = () => {
      for (const waiting of live.querySelectorAll("tr[hidden]")) waiting.hidden = false;
      button.remove();
    };
    button.addEventListener("click", () => { show(); scrollTo(0, 0); });
    addEventListener("scroll", () => { if (!away()) show(); });
    new MutationObserver((changes) => {
      const added = changes.flatMap((c) => [...c.addedNodes]).filter((n) => n.matches?.("tr"));
      if (!added.length) return;
      if (away()) for (const r of added) r.hidden = true;
      const waiting = live.querySelectorAll("tr[hidden]").length;
      const text = (n) => n + (n === 1 ? " new event" : " new events");
      if (waiting) { button.textContent = text(waiting) + " above"; state.append(button); }
      document.getElementById("announce").textContent = text(waiting || added.length);
      while (live.rows.length > 500) live.lastElementChild.remove();
    }).observe(live, {childList: true});
  }

  // A form is sent once; its idempotency key covers what this does not.
  document.addEventListener("submit", (e) => {
    if (e.target.method === "post") setTimeout(() => { for (const b of e.target.querySelectorAll("button")) b.disabled = true; });
  });
  addEventListener("pageshow", () => { for (const b of document.querySelectorAll("form button")) b.disabled = false; });

  // One form is open at a time, and a menu closes with Escape.
  document.addEventListener("keyup", (e) => {
    if (e.key === "Escape") e.target.closest("details.action[open], details.who[open]")?.removeAttribute("open");
  });
})();
