// Uploads from the page of a bucket: files as they are, and folders cut into shards. The bytes of files never pass through here.
"use strict";
// Shards as `find FOLDER -type f | LC_ALL=C sort | tarshards -T -` makes them, to the byte: see dfc/tar/samples.py and
// dfc/cli/cutting.py. A file is {path, size} and what a `File` is made of when it is sent, a shard {files, size, samples}.
const Shards = (() => {
  const BLOCK = 512, END = 1024, OCTAL_MAX = 8 ** 11 - 1, NAME_MAX = 4096, RECORDS_MAX = 4096;
  const STEP = 2000, PART = 50;  // files that are sorted, and opened, in one go
  const SLICE_MS = 20;  // for what a page does in one go
  const utf8 = new TextEncoder();
  const padded = (size) => Math.ceil(size / BLOCK) * BLOCK;
  let rested = 0;
  // Give the page time for other things, if it had none for a while. Not by a timer: those of a tab that nobody sees are late.
  const rest = async (signal) => {
    if (performance.now() - rested > SLICE_MS) {
      const { port1, port2 } = new MessageChannel();
      await new Promise((over) => { port1.onmessage = over; port2.postMessage(0); });
      port1.close();
      rested = performance.now();
    }
    signal?.throwIfAborted();
  };
  const block = (name, size, flag, isGnu, prefix = []) => {
    const bytes = new Uint8Array(BLOCK), put = (text, at) => bytes.set(utf8.encode(text), at);
    bytes.set(name);
    put("0000644\x000000000\x000000000\x00", 100);
    new DataView(bytes.buffer).setBigUint64(128, BigInt(size));  // in base 256, which the octal number replaces if it has room
    if (size > OCTAL_MAX) bytes[124] = 0x80; else put(`${size.toString(8).padStart(11, "0")}\x00`, 124);
    put(`00000000000\x00        ${flag}`, 136);
    put(isGnu ? "ustar  " : "ustar\x0000", 257);
    bytes.set(prefix, 345);
    put(`${bytes.reduce((sum, byte) => sum + byte).toString(8).padStart(6, "0")}\x00 `, 148);
    return bytes;
  };
  // What is before the data of a file: USTAR, or GNU where a name or a size does not fit.
  const header = (path, size) => {
    const name = utf8.encode(path), isGnu = size > OCTAL_MAX;
    if (name.length === 0 || name.length > NAME_MAX) throw new Error(`this name is too long: ${path.slice(0, 80)}…`);
    if (name.length <= 100) return block(name, size, "0", isGnu);
    const slash = isGnu ? -1 : name.indexOf(47, Math.max(1, name.length - 101));
    const fits = slash > 0 && slash < 156 && slash < name.length - 1;
    if (fits) return block(name.subarray(slash + 1), size, "0", false, name.subarray(0, slash));
    const body = BLOCK + padded(name.length + 1), bytes = new Uint8Array(body + BLOCK);
    bytes.set(block(utf8.encode("././@LongLink"), name.length + 1, "L", true));
    bytes.set(name, BLOCK);
    bytes.set(block(name.subarray(0, 100), size, "0", true), body);
    return bytes;
  };
  // A name as it is in a tar: without a leading `/` or `./`, and Unicode that can be written.
  const clean = (path) => new TextDecoder("utf-8", { ignoreBOM: true }).decode(utf8.encode(path)).replace(/^(?:\.?\/)+/, "");
  // The key of the sample that a file is of; null if it is of none.
  const keyOf = (path) => {
    const base = path.lastIndexOf("/") + 1, dot = path.indexOf(".", base);
    return dot <= base || /^__[^/]*__(?:$|\/)/.test(path) ? null : path.slice(0, dot);
  };
  // Files sorted by the bytes of their paths: runs of some, which are merged two by two.
  const sorted = async (files, signal) => {
    const moved = (char) => String.fromCharCode(char.charCodeAt(0) + (char < "\ue000" ? 0x2000 : -0x800));
    const order = (a, b) => (a.place < b.place ? -1 : a.place > b.place ? 1 : 0), merged = async (one, other = []) => {
      const all = [];
      for (let at = 0, beside = 0; at < one.length || beside < other.length;) {
        const isNext = beside === other.length || (at < one.length && order(one[at], other[beside]) <= 0);
        all.push(isNext ? one[at++] : other[beside++]);
        if (all.length % STEP === 0) await rest(signal);
      }
      return all;
    };
    let runs = [];
    for (let start = 0; start < files.length; start += STEP) {
      const run = files.slice(start, start + STEP);
      for (const file of run) file.place = file.path.replace(/[\ud800-\uffff]/g, moved);  // else surrogates are before U+E000
      runs.push(run.sort(order));
      await rest(signal);
    }
    for (let pairs; runs.length > 1; runs = pairs) {
      pairs = [];
      for (let at = 0; at < runs.length; at += 2) pairs.push(await merged(runs[at], runs[at + 1]));
    }
    return runs[0] ?? [];
  };
  // What must stay together of sorted files: all files with a key, and those without one that follow.
  function* unitsOf(files) {
    const open = [];  // those whose key may come again: what begins with `KEY.` is in a row
    let units = [], last, keyless = 0;
    for (const file of files) {
      const key = keyOf(file.path), ext = file.path.slice(key?.length).toLowerCase();
      keyless = key === null ? keyless + 1 : 0;
      while (open.length > 0 && !file.path.startsWith(`${open.at(-1).key}.`)) open.pop();
      let unit = key !== null ? open.find((each) => each.key === key) : keyless <= RECORDS_MAX ? last : undefined;
      if (unit === undefined) {
        if (open.length === 0) {
          yield* units;
          units = [];
        }
        units.push(unit = { key, files: [], samples: 0, exts: null, first: 0 });
        if (key !== null) open.push(unit);
      }
      const at = unit.files.push(file) - 1;
      if (key === null && keyless > RECORDS_MAX) last = undefined;
      if (key === null) continue;
      last = unit;
      if (unit.exts === null || unit.exts.has(ext) || at - unit.first >= RECORDS_MAX) {
        Object.assign(unit, { samples: unit.samples + 1, exts: new Set(), first: at });
      }
      unit.exts.add(ext);
    }
    yield* units;
  }
  // Cut files into shards of at most so many bytes and samples; a unit that is larger is a shard of its own.
  const cut = async (files, { size = Infinity, samples = Infinity }, signal) => {
    const shards = [];
    let shard = null;
    for (const unit of unitsOf(await sorted(files, signal))) {
      let bytes = 0;
      for (const file of unit.files) {
        bytes += header(file.path, file.size).length + padded(file.size);
        await rest(signal);
      }
      const isFull = !shard || shard.size + bytes > size || shard.samples >= samples;
      if (isFull) shards.push(shard = { files: [], size: END, samples: 0 });
      for (const file of unit.files) shard.files.push(file);
      shard.size += bytes;
      shard.samples += unit.samples;
    }
    return shards;
  };
  // The bytes of a shard, which the browser reads from the files when it sends them.
  const blob = async ({ files }, opened, signal) => {
    const parts = [];
    for (let start = 0; start < files.length; start += PART) {
      const some = files.slice(start, start + PART), data = await Promise.all(some.map(opened));
      parts.push(new Blob(some.flatMap(({ path, size }, at) => [header(path, size), data[at], new Uint8Array(padded(size) - size)])));
      await rest(signal);
    }
    return new Blob([...parts, new Uint8Array(END)]);
  };
  return { blob, clean, cut, header, rest };
})();

(() => {
  const TRIES = 3, RUNNING_MAX = 2, ROWS_MAX = 1000, SHOW_MS = 500, WAIT_MS = 1500, WAIT_MS_MAX = 60000, SIZE_DEFAULT = 1e9;
  const LOOK_BYTES = 1 << 20;  // a server reads so much of what it refuses; of a longer body its answer may be lost
  const section = document.getElementById("upload"), form = section.querySelector("form"), field = form.elements;
  const { bucket, endings } = section.dataset;
  const running = new Set(), counts = { stored: 0, "there already": 0, failed: 0, cancelled: 0 };
  let queue = [], notes = [], look = new AbortController(), looking = 0, looked = 0, timer;
  const place = (name, root = section) => root.querySelector(`[data-place=${name}]`);
  const isBusy = () => running.size + looking > 0;
  const visible = (text) => text.replace(/[\p{C}\p{Zl}\p{Zp}\u115f\u1160\u3164\uffa0]/gu,
    (char) => `⟨${char.codePointAt(0).toString(16).toUpperCase().padStart(4, "0")}⟩`);
  const sized = (size) => (size < 1e6 ? `${Math.ceil(size / 1e3)} kB` : `${(size / 1e6).toFixed(1)} MB`);
  // What is there by this name: its {size, samples}, null if nothing is, undefined if nobody says.
  const find = async (name, signal) => {
    const asked = { headers: { Accept: "application/json" }, signal };
    const answer = await fetch(`/${bucket}/?limit=1&prefix=${encodeURIComponent(name)}`, asked).catch(() => null);
    const listed = answer?.ok ? await answer.json().catch(() => null) : null;
    return listed ? listed.objects.find((each) => each.name === name) ?? null : undefined;
  };
  const put = (upload, body) => new Promise((over) => {
    const request = new XMLHttpRequest();
    request.open("PUT", `/${bucket}/${upload.name.split("/").map(encodeURIComponent).join("/")}`);
    if (!upload.replaces) request.setRequestHeader("If-None-Match", "*");
    Object.assign(upload, { sent: 0, began: performance.now(), waits: "" });
    Object.assign(request, { responseType: "json", onloadend: () => over(request) });
    request.upload.onprogress = (event) => { upload.sent = event.loaded; };
    upload.stop.signal.onabort = () => request.abort();
    request.send(body);
  });
  // How an upload ends, what there is to say of it, and the samples that are stored.
  const outcome = async (upload) => {
    const { name, size, replaces, stop: { signal } } = upload, body = await upload.body(signal);
    const isSame = (found) => found?.size === size && found.samples === (upload.samples ?? found.samples);
    const kept = (found) => ["there already", `is there${isSame(found) ? " with this size" : ""}, and was kept`, found?.samples];
    for (let tries = 1; !signal.aborted; tries++) {
      const found = !replaces && size > LOOK_BYTES ? await find(name, signal) : null;
      if (found) return kept(found);
      if (signal.aborted) break;
      const request = await put(upload, body), { status, response } = request;
      if (signal.aborted) break;
      if (status === 412) return kept(await find(name, signal));
      if (status === 200 || status === 201) {
        if (isSame(response)) return ["stored", `stored, ${sized(size)} ${response.warnings.join("; ")}`, response.samples];
        return ["failed", `has ${response.size} bytes and ${response.samples} samples there, not ${size} and ${upload.samples}`];
      }
      const reason = status === 401 ? "log in again" : response?.error?.message ??
        (status ? `the server has answered ${status}` : "the connection broke off, or a file was changed or cannot be read");
      const mayHelp = [0, 408, 429].includes(status) || (status >= 500 && status !== 507);  // 507: the disk is full
      if (!mayHelp || tries === TRIES) return ["failed", reason];
      const asked = 1000 * request.getResponseHeader("Retry-After") || 0;
      const waited = Math.min(WAIT_MS_MAX, Math.max(asked, WAIT_MS * tries ** 2));
      upload.waits = `${reason}; try ${tries + 1} of ${TRIES} follows`;
      await new Promise((over) => { signal.onabort = over; setTimeout(over, waited); });
    }
    return ["cancelled", `was cancelled${upload.sent > 0 && upload.sent >= size ? " when all was sent: it may be stored" : ""}`];
  };
  const run = async (upload) => {
    const rows = place("rows"), row = place("row").content.firstElementChild.cloneNode(true), title = visible(upload.name);
    Object.assign(upload, { stop: new AbortController(), sent: 0, began: performance.now(), waits: "", row });
    running.add(upload);
    place("name", row).textContent = title;
    for (const each of row.querySelectorAll("[title]")) each.title += ` ${title}`;
    place("stop", row).addEventListener("click", () => upload.stop.abort());
    rows.append(row);
    const [how, text, samples] = await outcome(upload)
      .catch(({ message }) => (upload.stop.signal.aborted ? ["cancelled", "was cancelled"] : ["failed", message]));
    counts[how] += 1;
    row.className = how.replace(" ", "-");
    place("doing", row).remove();
    place("said", row).textContent = visible(text);
    const shown = { hidden: samples == null, textContent: samples == null ? "" : `${samples} samples` };
    Object.assign(place("samples", row), shown, { href: `/ui/shard?${new URLSearchParams({ bucket, object: upload.name })}` });
    // Of very many, those that are stored need not be named any longer.
    if (rows.childElementCount > ROWS_MAX) (rows.querySelector(".stored") ?? rows.querySelector(":scope > [class]")).remove();
    running.delete(upload);
    next();
  };
  const next = () => {
    while (running.size < RUNNING_MAX && queue.length > 0) run(queue.shift());
    if (isBusy()) timer ??= setInterval(show, SHOW_MS); else show();
  };
  // Twice a second, not with every event: figures are read, and results are said by screen readers.
  const show = () => {
    for (const { row, sent, size, began, waits } of running) {
      const rate = sent / Math.max(0.1, (performance.now() - began) / 1000);
      Object.assign(place("sent", row), { max: Math.max(1, size), value: sent });
      place("said", row).textContent = waits || `${sized(sent)} of ${sized(size)}, ${sized(rate)}/s`;
    }
    const said = Object.entries({ ...counts, "to go": queue.length + running.size }).filter(([, count]) => count > 0)
      .map(([how, count]) => `${count} ${how}`).join(", ");
    const text = [...notes, looking > 0 ? `${looked.toLocaleString("en")} files found` : "", said].filter(Boolean).join(". ");
    if (place("status").textContent !== text) place("status").textContent = text;
    place("running").hidden = !isBusy();
    place("after").hidden = isBusy() || counts.stored === 0;
    if (!isBusy() && timer) document.dispatchEvent(new Event("stored"));  // the listing is another one
    if (!isBusy()) timer = clearInterval(timer);
  };
  const asked = (path, object, method) => new Promise((good, bad) => {
    object[method](good, () => bad(new Error(`${path} cannot be read`)));
  });
  const opened = async ({ path, file, entry, size }) => {
    const found = file ?? await asked(path, entry, "file");
    if (found.size !== size) throw new Error(`${path} was changed`);
    return found;
  };
  // The uploads that files, [{path, file or entry, size}], become. Error if one of them cannot be taken.
  const planned = async (files, signal) => {
    const folder = field.folder.value.trim().replace(/^\/+/, "").replace(/[^/]$/, "$&/");
    const replaces = field.replace.checked, samples = Number(field.samples.value) || undefined;
    const size = Number(field.size.value) * 1e6 || (samples ? undefined : SIZE_DEFAULT), sets = new Map(), uploads = [];
    for (const member of files) {
      await Shards.rest(signal);
      const name = Shards.clean(member.path), parts = name.split("/"), size = member.size ?? member.file.size;
      if ((parts.length > 1 || field.pack.checked) && !endings.split(" ").some((each) => name.toLowerCase().endsWith(each))) {
        const set = field.shards.value.trim() || (parts.length > 1 ? parts[0] : "files");
        sets.set(set, sets.get(set) ?? []).get(set).push(Object.assign(member, { path: name, size }));
      } else {
        uploads.push({ name: folder + name, size, replaces, body: () => opened({ ...member, size }) });
      }
    }
    for (const [set, members] of sets) {
      const called = (number) => `${folder}${set}-${String(number).padStart(6, "0")}.tar`;
      const shards = await Shards.cut(members, { size, samples }, signal);
      const body = (shard) => (stopped) => Shards.blob(shard, opened, stopped);
      shards.forEach((shard, at) => uploads.push({ ...shard, name: called(at), replaces, body: body(shard) }));
      if (await find(called(shards.length))) notes.push(`${visible(called(shards.length))} is there from an earlier upload`);
      if (new Set(members.map(({ path }) => path.replace(/[^/]*$/, ""))).size > 1) place("sorted").hidden = false;
    }
    // A browser would take `..` for another folder, whatever it is escaped as.
    const wrong = uploads.find(({ name }) => /(?:^|\/)\.{0,2}(?:\/|$)/.test(name));
    if (wrong) throw new Error(`${wrong.name} cannot be the name of an object`);
    signal.throwIfAborted();
    return uploads;
  };
  const take = async (collect) => {
    if (!form.reportValidity()) return;
    const { signal } = look;
    if (looking === 0) [looked, notes] = [0, []];
    looking += 1;
    next();
    const uploads = await collect(signal).then((files) => planned(files, signal))
      .catch(({ message }) => void notes.push(`Nothing of this is uploaded: ${visible(message)}`));
    if (uploads) queue = queue.concat(uploads);
    looking -= 1;
    next();
  };
  // All files of what was dropped, some at a time.
  const walk = async (dropped, signal) => {
    const files = [], folders = [];
    const keep = async (entries) => {
      await Promise.all(entries.map(async (entry) => {
        if (entry.isDirectory) return void folders.push(entry);
        // A `File` costs 20 kB in Chromium, which has another way to know the size: there it is opened when it is sent.
        const known = entry.getMetadata ? await asked(entry.fullPath, entry, "getMetadata").catch(() => null) : null;
        const found = known ? { entry, size: known.size } : { file: await asked(entry.fullPath, entry, "file") };
        files.push({ path: entry.fullPath, ...found });
        looked += 1;
      }));
      await Shards.rest(signal);
    };
    await keep(dropped);
    for (let folder = folders.pop(); folder; folder = folders.pop()) {
      const reader = folder.createReader(), more = () => asked(folder.fullPath, reader, "readEntries");
      for (let some = await more(); some.length > 0; some = await more()) await keep(some);  // and none at the end
    }
    return files;
  };
  for (const input of [field.files, field.directory]) input.addEventListener("change", () => {
    const files = Array.from(input.files, (file) => ({ path: file.webkitRelativePath || file.name, file }));
    input.value = "";
    take(async () => { looked += files.length; return files; });
  });
  // Anywhere on the page, since a browser shows a file that is dropped beside the zone, and uploads would end.
  for (const type of ["dragover", "dragleave", "drop"]) document.addEventListener(type, (event) => {
    form.classList.toggle("over", type === "dragover");
    if (!event.dataTransfer?.types.includes("Files")) return;
    event.preventDefault();
    const entries = Array.from(event.dataTransfer.items, (item) => item.webkitGetAsEntry());  // now: later there are none
    if (type === "drop") take((signal) => walk(entries.filter(Boolean), signal));
  });
  place("cancel").addEventListener("click", () => {
    look.abort(new Error("it was cancelled"));
    [counts.cancelled, look, queue] = [counts.cancelled + queue.length, new AbortController(), []];
    for (const upload of running) upload.stop.abort();
  });
  addEventListener("beforeunload", (event) => isBusy() && event.preventDefault());
  [form.hidden, place("without").hidden] = [false, true];
})();
