// Draws the timeline and keeps it up to date. Data comes from the server.
(() => {
  "use strict";
  const chart = document.getElementById("gantt");
  if (!chart) return;
  let figure = null;
  let drawn = false;

  const draw = async () => {
    await drawChart(chart, figure, { hasLanes: true });
    drawn = true;
  };

  let asking = false;
  const load = async () => {
    if (asking || document.hidden) return;
    asking = true;
    try {
      const answer = await fetch(chart.dataset.figure, { headers: { Accept: "application/json" } });
      if (!answer.ok) throw new Error(`the server answered ${answer.status}`);
      figure = await answer.json();
      await draw();
    } catch (error) {
      if (!drawn) chart.textContent = `The timeline could not be loaded (${error.message}). Reload the page to try again.`;
    } finally {
      asking = false;
    }
  };

  let last = 0;
  document.body.addEventListener("live:nodes", () => {
    if (Date.now() - last < 3000) return;
    last = Date.now();
    load();
  });
  document.addEventListener("themechange", () => figure && draw());
  setInterval(load, 20000);
  load();
})();
