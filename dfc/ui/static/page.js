// What scripts add to the pages: figures that live, and times as they are where the reader is. Everything else works without.
"use strict";
(() => {
  const STALE_MS = 10000;   // older figures are greyed
  const POLL_MS = 2000;     // where there is no SharedWorker
  const LATER_MS = 3000;    // after an answer that is no figures
  const place = document.getElementById("age");
  const began = performance.now();
  let heard = began;        // when figures came last
  let shape = null;         // of the page that is shown
  let asking = false;
  let why = "the cluster does not answer";
  let looked = began;       // when it was last looked why

  const localTimes = (root) => {
    for (const each of root.querySelectorAll("time[datetime]")) {
      const when = new Date(each.dateTime);
      if (!Number.isNaN(when.getTime()) && !each.dataset.local) {
        each.dataset.local = "1";
        each.textContent = when.toLocaleString();
        each.title = each.dateTime + " (UTC)";
      }
    }
  };

  const showAge = () => {
    const age = performance.now() - heard;
    const stale = age > STALE_MS;
    document.body.classList.toggle("stale", stale);
    place.hidden = !stale;
    if (stale) {
      const text = `These figures are ${Math.round(age / 1000)} s old: ${why}.`;
      if (place.textContent !== text) place.textContent = text;
      if (performance.now() - looked > STALE_MS) look();
    }
  };

  // Why nothing comes: a session that has run out is sent to the login instead.
  const look = async () => {
    looked = performance.now();
    try {
      const answer = await fetch("/ui/live?once=1");
      why = answer.redirected ? "log in again to see newer ones" : answer.ok ? "newer ones do not come" : "the cluster has none";
    } catch {
      why = "the cluster does not answer";
    }
  };

  // Render the page anew in place; what the reader has opened or focussed outside of it stays.
  const refresh = async (live, wanted) => {
    if (asking) return;
    asking = true;
    try {
      const answer = await fetch(location.href, { headers: { Accept: "text/html" } });
      if (!answer.ok) return;
      const page = new DOMParser().parseFromString(await answer.text(), "text/html");
      const found = page.getElementById("live");
      shape = found === null ? wanted : found.dataset.shape;  // it may still be older than the figures
      if (found === null) return;  // the login, say
      live.replaceChildren(...found.childNodes);
      live.dataset.shape = shape;
      localTimes(live);
    } finally {
      asking = false;
    }
  };

  const take = (figures) => {
    const live = document.getElementById("live");
    if (live === null) return;
    if (figures.silence !== undefined) {
      why = figures.silence;
      looked = performance.now();
      return;
    }
    heard = performance.now();
    if (shape === null) shape = live.dataset.shape;
    for (const each of live.querySelectorAll("[data-live]")) {
      const value = figures.values[each.dataset.live];
      if (value !== undefined && each.textContent !== value) each.textContent = value;
    }
    if (figures.shape !== shape) refresh(live, figures.shape).catch(() => {});
    showAge();
  };

  const poll = async () => {
    let wait = POLL_MS;
    try {
      const answer = await fetch("/ui/live?once=1");
      if (answer.ok) take(await answer.json()); else wait = LATER_MS;
    } catch {
      wait = LATER_MS;
    }
    setTimeout(poll, wait);
  };

  const follow = () => {
    const script = document.querySelector("script[data-worker]");
    if (typeof SharedWorker === "undefined" || script === null) return poll();
    const worker = new SharedWorker(script.dataset.worker, { name: "dfc-live" });
    worker.onerror = () => poll();
    worker.port.onmessage = (message) => take(message.data);
    worker.port.start();
    const alive = () => worker.port.postMessage("alive");
    alive();
    setInterval(alive, 5000);
    addEventListener("pagehide", () => worker.port.postMessage("gone"));
    addEventListener("pageshow", alive);
    document.addEventListener("visibilitychange", alive);  // timers of hidden pages rest
  };

  // The arrow keys lead to the samples beside the one that is shown, unless they are wanted elsewhere.
  if (document.querySelector("[data-keys]") !== null) {
    document.addEventListener("keydown", (event) => {
      const rel = { ArrowLeft: "prev", ArrowRight: "next" }[event.key];
      const busy = event.altKey || event.ctrlKey || event.metaKey || event.shiftKey ||
        event.target.closest("input, select, textarea, audio, video, pre") !== null;
      if (rel !== undefined && !busy) document.querySelector(`[data-keys] a[rel=${rel}]`)?.click();
    });
  }

  localTimes(document);
  if (document.getElementById("live") !== null) {
    follow();
    setInterval(showAge, 1000);
  }
})();
