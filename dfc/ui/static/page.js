// What scripts add to the pages: figures that live, and times as they are where the reader is. Everything else works without.
"use strict";
(() => {
  const STALE_MS = 10000;   // older figures are greyed
  const POLL_MS = 2000;     // where there is no SharedWorker
  const AGAIN_MS = 5000;    // for what the server draws
  const LATER_MS = 3000;    // after an answer that is no figures
  const BLOCK = 512;        // of a tar
  const DRAWN_MS = 10000;   // for a page that is fetched anew
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
        const seconds = each.closest(".log") ? "medium" : "short";
        each.textContent = when.toLocaleString(undefined, { dateStyle: "medium", timeStyle: seconds });
        each.title = each.dateTime + " (UTC)";
      }
    }
  };
  const showAge = () => {
    const age = performance.now() - heard;
    const stale = age > STALE_MS;
    document.body.classList.toggle("stale", stale);
    place.hidden = !stale;
    if (!stale) return;
    const text = `These figures are ${Math.round(age / 1000)} s old: ${why}.`;
    if (place.textContent !== text) place.textContent = text;
    if (performance.now() - looked > STALE_MS) look();
  };
  // The figures of now, or undefined, and why none come: a session that has run out is sent to the login instead.
  const look = async () => {
    looked = performance.now();
    const answer = await fetch("/ui/live?once=1").catch(() => null);
    why = answer === null ? "the cluster does not answer" : answer.redirected ? "log in again to see newer ones" :
      answer.ok ? "newer ones do not come" : "the cluster has none";
    return answer?.ok && !answer.redirected ? answer.json().catch(() => undefined) : undefined;
  };
  // A part of a page as it is now; null if the page has none, undefined if the page does not come.
  const drawn = async (address, id) => {
    const answer = await fetch(address, { headers: { Accept: "text/html" }, signal: AbortSignal.timeout(DRAWN_MS) });
    if (!answer.ok) return undefined;
    return answer.redirected ? null : new DOMParser().parseFromString(await answer.text(), "text/html").getElementById(id);
  };
  // Render the page anew in place; what the reader has opened or focussed outside of it stays.
  const refresh = async (live, wanted) => {
    if (asking) return;
    asking = true;
    try {
      const found = await drawn(location.href, "live");
      if (found === undefined) return;
      shape = found?.dataset.shape ?? wanted;  // it may still be older than the figures
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
    const figures = await look();
    if (figures !== undefined) take(figures);
    setTimeout(poll, figures !== undefined ? POLL_MS : LATER_MS);
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
    const lead = (rel) => document.querySelector(`[data-keys] a[rel=${rel}]`)?.click();
    document.addEventListener("keydown", (event) => {
      const rel = { ArrowLeft: "prev", ArrowRight: "next" }[event.key];
      const busy = event.altKey || event.ctrlKey || event.metaKey || event.shiftKey ||
        event.target.closest("input, select, textarea, audio, video, pre") !== null;
      if (rel !== undefined && !busy) lead(rel);
    });
    // So does a swipe of one finger, but for what is scrolled or played by it.
    let from = null;
    document.addEventListener("touchstart", (event) => {
      const isFree = event.touches.length === 1 && event.target.closest("pre, audio, video, input") === null;
      from = isFree ? event.touches[0] : null;
    }, { passive: true });
    document.addEventListener("touchend", (event) => {
      if (from === null) return;
      const to = event.changedTouches[0], x = to.clientX - from.clientX, y = to.clientY - from.clientY;
      if (Math.abs(x) > 60 && Math.abs(x) > 2 * Math.abs(y)) lead(x < 0 ? "next" : "prev");
      from = null;
    }, { passive: true });
  }
  // A picture that cannot be shown says why. Where no small ones can be made, the original is shown if it is not large.
  const explain = async (picture) => {
    const { small, original } = picture.dataset, address = small ?? picture.src;  // small: of one that is shown as it is
    if (!address.includes("thumbnail=")) return;
    const answer = await fetch(address), tries = Number(picture.dataset.tries ?? 0) + 1;
    if (answer.ok) {
      delete picture.dataset.small;
      if (small) picture.src = small;
      return;
    }
    if (answer.status === 503 && tries <= 3) {
      picture.dataset.tries = tries;
      setTimeout(() => { picture.src = picture.src; }, 1000 * (answer.headers.get("Retry-After") ?? 2));
      return;
    }
    const { code, message } = (await answer.json()).error;
    delete picture.dataset.original;
    if (code === "missing_library" && original !== undefined) picture.src = original;
    else picture.replaceWith(Object.assign(document.createElement("span"), { className: "text", textContent: message }));
  };
  const broken = (picture) => explain(picture).catch(() => {});
  document.addEventListener("error", (event) => { if (event.target instanceof HTMLImageElement) broken(event.target); }, true);
  for (const each of document.images) if (each.complete && each.naturalWidth === 0 && each.currentSrc) broken(each);
  for (const each of document.querySelectorAll("img[data-pixels]")) each.decode().then(() => {
    document.getElementById(each.dataset.pixels).textContent = `, ${each.naturalWidth} × ${each.naturalHeight} pixels`;
  }).catch(() => {});
  // The small pictures of a grid come together, as a tar for each shard; those that do not come so are asked for one by one.
  const gather = async (address, pictures) => {
    const reader = (await fetch(address + pictures.map(({ number }) => number))).body.getReader();
    let data = new Uint8Array(), end;
    for (let part = await reader.read(); !part.done; part = await reader.read()) {
      data = new Uint8Array(await new Blob([data, part.value]).arrayBuffer());
      for (;; data = data.subarray(end)) {
        const header = String.fromCharCode(...data.subarray(0, 136)), size = parseInt(header.slice(124), 8);
        end = BLOCK + Math.ceil(size / BLOCK) * BLOCK;
        if (!(end <= data.length)) break;  // also at the end of the archive, which has no size
        const { picture, number } = pictures.shift(), isPicture = /^\d+\.jpg/.test(header);  // or an error, which may be over
        const body = new Blob([data.subarray(BLOCK, BLOCK + size)], { type: "image/jpeg" });
        picture.src = isPicture ? URL.createObjectURL(body) : address + number;
      }
    }
  };
  const shards = {};  // address of the small pictures of a shard, but for the number of the sample -> {number, picture} of each
  for (const each of document.querySelectorAll(".tiles noscript")) {
    const holder = document.createElement("template");
    holder.innerHTML = each.textContent;
    const picture = holder.content.firstElementChild;
    const [, path, number, query] = picture.getAttribute("src").match(/^([^?]*\?)number=(\d+)&(.*)$/);
    picture.removeAttribute("src");
    each.replaceWith(picture);
    (shards[`${path}${query}&number=`] ??= []).push({ number, picture });
  }
  for (const [address, pictures] of Object.entries(shards)) {
    const alone = () => pictures.forEach(({ number, picture }) => { picture.src = address + number; });
    if (pictures.length === 1) alone(); else gather(address, pictures).catch(() => {}).finally(alone);
  }
  // What the server draws, such as plots, is fetched anew while somebody looks and marks nothing; what the reader has opened or
  // reached stays so. An empty address is that of the page. It ends when the new one does not want to be fetched any more.
  const again = async (region) => {
    if (!getSelection().isCollapsed) return;
    const found = await drawn(region.dataset.again ?? "", region.id);
    if (!found || !region.isConnected) return;
    if (found.dataset.again === undefined) delete region.dataset.again;
    const kept = () => [...region.querySelectorAll("details, summary, a, .wide")];
    const before = kept().map((each) => [each.open, each.scrollLeft, each === document.activeElement]);
    region.replaceChildren(...found.childNodes);
    kept().forEach((each, index) => {
      const [open, left, focus] = before[index] ?? [];
      if (open !== undefined) each.open = open;
      if (left) each.scrollLeft = left;
      if (focus) each.focus({ preventScroll: true });
    });
    localTimes(region);
  };
  document.addEventListener("stored", () => again(document.getElementById("listing")).catch(() => {}));
  const redraw = async () => {
    if (!document.hidden) await Promise.allSettled([...document.querySelectorAll("[data-again]")].map(again));
    setTimeout(redraw, AGAIN_MS);
  };
  // A button beside each text to copy. Only secure contexts have a clipboard; elsewhere the text is selected, to be copied by hand.
  for (const text of document.querySelectorAll("pre[data-copy]")) {
    const button = Object.assign(document.createElement("button"), { type: "button", className: "quiet", textContent: "Copy" });
    button.addEventListener("click", async () => {
      const isCopied = await navigator.clipboard?.writeText(text.textContent).then(() => true, () => false);
      if (!isCopied) getSelection().selectAllChildren(text);
      button.textContent = isCopied ? "Copied" : "Selected: copy it";
    });
    text.after(button);
  }
  localTimes(document);
  if (document.getElementById("live") !== null) {
    follow();
    setInterval(showAge, 1000);
  }
  if (document.querySelector("[data-again]") !== null) setTimeout(redraw, AGAIN_MS);
})();
