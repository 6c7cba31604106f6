// Runs before the page is drawn, so that it does not flash in the wrong colours: `light`, `dark`, or as the system has it.
(() => {
  "use strict";
  const root = document.documentElement;
  root.dataset.script = "";
  try {
    const theme = localStorage.getItem("theme");
    if (theme === "light" || theme === "dark") root.dataset.theme = theme;
  } catch {
    // A browser may forbid pages to keep anything; the theme is the system's then.
  }
})();
