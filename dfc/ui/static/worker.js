// One stream of figures for all tabs of a browser: over HTTP/1.1 six streams would block every further request.
"use strict";
const GONE_MS = 15000;      // a tab that says nothing for so long is closed
const AGAIN_MS = 2000;
const SILENT_MS = 8000;
const tabs = new Map();     // port -> when it was heard
let source = null;
let last = null;
let heard = 0;              // when the stream brought something last

const open = () => {
  heard = Date.now();
  source = new EventSource("/ui/live");
  for (const kind of ["figures", "silence"]) source.addEventListener(kind, (event) => {
    heard = Date.now();
    const said = JSON.parse(event.data);
    if (kind === "figures") last = said;
    for (const port of tabs.keys()) port.postMessage(kind === "figures" ? said : { silence: said });
  });
  source.onerror = () => {
    // After an answer that is no stream a browser does not try again by itself.
    if (source?.readyState === EventSource.CLOSED) {
      source = null;
      setTimeout(sweep, AGAIN_MS);
    }
  };
};

const sweep = () => {
  const now = Date.now();
  for (const [port, heard] of tabs) if (now - heard > GONE_MS) tabs.delete(port);
  if (tabs.size === 0 && source !== null) {
    source.close();
    source = null;
    last = null;
  } else if (tabs.size > 0 && (source === null || now - heard > SILENT_MS)) {
    source?.close();  // a node that hangs keeps its connections; another one may answer by now
    open();
  }
};

onconnect = (event) => {
  const port = event.ports[0];
  port.onmessage = (message) => {
    if (message.data === "gone") tabs.delete(port); else tabs.set(port, Date.now());
    sweep();
  };
  tabs.set(port, Date.now());
  if (last !== null) port.postMessage(last);
  sweep();
};
setInterval(sweep, 5000);
