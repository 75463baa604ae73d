// A page opened from disk may start no worker, and the search of the theme runs in one. Here its script runs in a
// hidden frame instead, which the theme recognises by the name IFrameWorker. Nothing is fetched from elsewhere.
"use strict";
if (location.protocol === "file:") {
  class IFrameWorker extends EventTarget {
    constructor(address) {
      super();
      this.waiting = [];
      const frame = document.createElement("iframe");
      frame.hidden = true;
      document.body.append(frame);
      const inside = frame.contentWindow;
      const said = (to, data) => to.dispatchEvent(new MessageEvent("message", { data }));
      // What the script posts goes to the page, not to itself.
      inside.postMessage = (data) => setTimeout(() => {
        const event = new MessageEvent("message", { data });
        if (this.onmessage) this.onmessage(event);
        this.dispatchEvent(event);
      });
      const load = (url) => new Promise((done, failed) => {
        const script = inside.document.createElement("script");
        script.src = new URL(url, location).href;
        script.onload = done;
        script.onerror = failed;
        inside.document.head.append(script);
      });
      inside.importScripts = (...urls) => urls.reduce((before, url) => before.then(() => load(url)), Promise.resolve());
      this.tell = (data) => said(inside, data);
      load(address).then(() => {
        for (const data of this.waiting) this.tell(data);
        this.waiting = null;
      });
    }

    postMessage(data) {
      if (this.waiting) this.waiting.push(data);
      else this.tell(data);
    }

    terminate() {}
  }
  window.IFrameWorker = window.Worker = IFrameWorker;
}
