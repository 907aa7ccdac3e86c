// Runs before the first paint, so that a remembered theme does not flash.
(() => {
  "use strict";
  const remembered = localStorage.getItem("loadmaster-theme");
  if (remembered === "light" || remembered === "dark") {
    document.documentElement.dataset.theme = remembered;
  }
})();
