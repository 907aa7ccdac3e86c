// Draws the chart of energy over time. Data comes from the server.
(() => {
  "use strict";
  const chart = document.getElementById("costs");
  if (!chart) return;
  let figure = null;

  const draw = () => drawChart(chart, figure);

  const load = async () => {
    try {
      const answer = await fetch(chart.dataset.figure, { headers: { Accept: "application/json" } });
      if (!answer.ok) throw new Error(`the server answered ${answer.status}`);
      figure = await answer.json();
      await draw();
    } catch (error) {
      chart.textContent = `The chart could not be loaded (${error.message}). Reload the page to try again.`;
    }
  };

  document.addEventListener("themechange", () => figure && draw());
  load();
})();
