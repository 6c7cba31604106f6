// Makes a page live. Without this script everything works, too: by links, forms and the button that reads a page again.
//
// - Times are shown in the zone of the viewer.
// - The page is read again when its event stream says so, and the parts that differ are replaced (idiomorph). While the tab is hidden,
//   or while the viewer has switched it off, there is no stream and no request; afterwards the page is read at once.
// - When the server is away, the page says so, asks again after a growing pause, and is read again when it is back.
(() => {
  "use strict";

  // --- times ---------------------------------------------------------------------------------------------------------------

  const full = new Intl.DateTimeFormat(undefined, { dateStyle: "medium", timeStyle: "medium" });
  const short = new Intl.DateTimeFormat(undefined, { month: "short", day: "numeric", hour: "2-digit", minute: "2-digit", second: "2-digit", hourCycle: "h23" });
  const units = [["d", 86400], ["h", 3600], ["min", 60], ["s", 1]];

  /** Returns how long ago, or until when: `3 min ago`, `in 2 h`. */
  function relative(time) {
    const seconds = Math.round((Date.now() - time) / 1000);
    if (Math.abs(seconds) < 1) return "now";
    const [unit, size] = units.find(([, size]) => Math.abs(seconds) >= size);
    const text = `${Math.floor(Math.abs(seconds) / size)} ${unit}`;
    return seconds > 0 ? `${text} ago` : `in ${text}`;
  }

  function localize(root) {
    for (const element of root.querySelectorAll("time[datetime]")) {
      const time = new Date(element.dateTime);
      if (Number.isNaN(time.getTime())) continue;
      element.textContent = element.dataset.as === "age" ? relative(time) : short.format(time);
      element.title = full.format(time);
    }
  }

  // --- the newer version of the page ---------------------------------------------------------------------------------------

  const content = document.getElementById("content");
  let gone = false;
  let reading = null;
  let again = false;

  /** Reads the page and replaces what differs. Calls during a read lead to one more read. */
  async function refresh() {
    if (reading) {
      again = true;
      return reading;
    }
    reading = read();
    try {
      return await reading;
    } finally {
      reading = null;
      if (again) {
        again = false;
        soon();
      }
    }
  }

  async function read() {
    const response = await fetch(location.href, { headers: { Accept: "text/html" }, cache: "no-store", credentials: "same-origin" });
    if (response.status >= 500) throw new Error(`the server responded ${response.status}`);
    if (response.status === 404) {
      // What the page was about has been deleted. It says so, and does not ask again.
      gone = true;
      stop();
      button.hidden = true;
    }
    const page = new DOMParser().parseFromString(await response.text(), "text/html");
    const newer = page.getElementById("content");
    if (!newer) throw new Error("the response is no page");
    localize(newer);
    Idiomorph.morph(content, newer.childNodes, { morphStyle: "innerHTML", ignoreActiveValue: true, callbacks: { beforeNodeMorphed: keep } });
    document.title = page.title;
    document.dispatchEvent(new Event("page:read"));
  }

  /** Keeps what the viewer has entered, chosen and opened. */
  function keep(old, newer) {
    if (old instanceof HTMLDetailsElement && newer instanceof HTMLDetailsElement) {
      newer.open = old.open;
    } else if (old instanceof HTMLInputElement && newer instanceof HTMLInputElement) {
      if (old.type === "checkbox" || old.type === "radio") {
        newer.toggleAttribute("checked", old.checked);
        newer.checked = old.checked;
      } else if (old.value !== old.defaultValue) {
        return false;
      }
    } else if (old instanceof Element && old.hasAttribute("data-kept")) {
      return false;
    }
    return true;
  }

  // --- live ----------------------------------------------------------------------------------------------------------------

  const PAUSES = [500, 1000, 2000, 4000, 8000];
  const { events, every, pace } = document.body.dataset; // seconds; the pace is the least time between two reads
  const button = document.getElementById("live");
  const text = document.getElementById("live-text");
  let on = true;
  let source = null;
  let timer = 0;
  let due = 0;
  let last = 0;
  let failures = 0;

  function show(state) {
    button.dataset.state = state;
    button.setAttribute("aria-pressed", String(on));
    text.textContent = { live: "Live", paused: "Paused", away: "Reconnecting…" }[state];
  }

  /** Reads the page as soon as the pace allows. */
  function soon() {
    if (due) return;
    due = setTimeout(async () => {
      due = 0;
      if (!on || document.hidden) return;
      last = Date.now();
      try {
        await refresh();
      } catch {
        away();
      }
    }, Math.max(0, last + Number(pace) * 1000 - Date.now()));
  }

  function stop() {
    source?.close();
    source = null;
    clearTimeout(timer);
    clearTimeout(due);
    timer = due = 0;
  }

  /** The server does not respond: tries again after a pause. */
  function away() {
    stop();
    if (gone || !on || document.hidden) return;
    show("away");
    timer = setTimeout(async () => {
      try {
        await refresh();
      } catch {
        return away();
      }
      start();
    }, PAUSES[Math.min(failures++, PAUSES.length - 1)]);
  }

  function arrived() {
    failures = 0;
    show("live");
  }

  /** The progress of jobs is no event: a page that shows jobs at work is read every few seconds, too. */
  function work() {
    if (!source) return; // The timer is the one of `away`.
    clearTimeout(timer);
    timer = Number(every) && content.querySelector("[data-runs]") ? setTimeout(soon, Number(every) * 1000) : 0;
  }

  async function start() {
    stop();
    if (!on || gone || document.hidden) return;
    if (events) {
      source = new EventSource(events);
      // What has changed before the stream was open is read now, what changes later is said by the stream.
      source.onopen = () => (arrived(), soon());
      source.onerror = away;
      source.addEventListener("changed", soon);
      return;
    }
    try {
      await refresh();
    } catch {
      return away();
    }
    arrived();
    if (on && !document.hidden) timer = setTimeout(start, Number(every) * 1000);
  }

  if (button) {
    try {
      on = sessionStorage.getItem("paused") !== "1";
    } catch {
      // Then each page begins live.
    }
    show(on ? "live" : "paused");
    button.addEventListener("click", () => {
      on = !on;
      try {
        sessionStorage.setItem("paused", on ? "0" : "1");
      } catch {
        // See above.
      }
      if (on) {
        start();
      } else {
        stop();
      }
      show(on ? "live" : "paused");
    });
    document.addEventListener("page:read", () => events && work());
    document.addEventListener("visibilitychange", () => (document.hidden ? stop() : start()));
    window.addEventListener("pageshow", start);
    window.addEventListener("pagehide", stop);
  }

  // --- what makes the forms pleasant ---------------------------------------------------------------------------------------

  const themes = ["system", "light", "dark"];
  const theme = document.getElementById("theme");
  const named = () => document.documentElement.dataset.theme ?? "system";
  const showTheme = () => (document.getElementById("theme-text").textContent = { system: "Auto", light: "Light", dark: "Dark" }[named()]);
  theme.addEventListener("click", () => {
    const next = themes[(themes.indexOf(named()) + 1) % themes.length];
    if (next === "system") delete document.documentElement.dataset.theme;
    else document.documentElement.dataset.theme = next;
    try {
      localStorage.setItem("theme", next);
    } catch {
      // Then it lasts as long as the page.
    }
    showTheme();
  });
  showTheme();

  /** Shows how many rows are selected, and selects all of them with the box in the head of the table. */
  function selection() {
    const all = document.getElementById("all-rows");
    if (!all) return;
    const boxes = [...document.querySelectorAll("input[name=job]")];
    const chosen = boxes.filter((box) => box.checked).length;
    all.checked = chosen > 0 && chosen === boxes.length;
    all.indeterminate = chosen > 0 && chosen < boxes.length;
    const count = document.getElementById("selected");
    if (count) count.textContent = chosen === 0 ? "None selected" : `${chosen} selected`;
  }
  document.addEventListener("change", ({ target }) => {
    if (target.id === "all-rows") {
      for (const box of document.querySelectorAll("input[name=job]")) box.checked = target.checked;
    }
    if (target.matches("select[data-submits]")) target.form.requestSubmit();
    selection();
  });
  document.addEventListener("page:read", selection);
  selection();

  // What was just done is said once: neither a reload nor a bookmark repeats it.
  const here = new URL(location.href);
  if (here.searchParams.has("done")) {
    for (const name of ["done", "n", "with"]) here.searchParams.delete(name);
    history.replaceState(null, "", here);
  }

  localize(document);
  setInterval(() => !document.hidden && localize(document), 10000);
})();
