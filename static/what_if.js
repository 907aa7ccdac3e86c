// Draws the charts whose data stands on the page, also when a part of it is replaced.
(() => {
  "use strict";
  const draw = async () => {
    for (const box of document.querySelectorAll("[data-chart]")) {
      await drawChart(box, JSON.parse(box.dataset.chart), { hasLanes: "lanes" in box.dataset });
    }
  };

  document.addEventListener("themechange", draw);
  document.addEventListener("htmx:afterSwap", draw);
  draw();
})();
