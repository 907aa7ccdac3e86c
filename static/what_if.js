// Draws the charts whose data stands on the page, one beside the other.
(() => {
  "use strict";
  const charts = [...document.querySelectorAll("[data-chart]")].map((box) => ({ box, figure: JSON.parse(box.dataset.chart) }));

  const draw = async () => {
    for (const { box, figure } of charts) await drawChart(box, figure, { hasLanes: true });
  };

  document.addEventListener("themechange", draw);
  draw();
})();
