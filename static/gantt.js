// Draws the timeline and keeps it up to date. Colours come from the style sheet, data from the server.
(() => {
  "use strict";
  const chart = document.getElementById("gantt");
  if (!chart) return;
  const options = { responsive: true, displayModeBar: false, scrollZoom: false };
  let figure = null;
  let drawn = false;

  const themed = () => {
    const style = getComputedStyle(document.documentElement);
    const colour = (name) => style.getPropertyValue(name).trim();
    const axis = { gridcolor: colour("--line"), linecolor: colour("--line"), zerolinecolor: colour("--line") };
    const layout = {
      ...figure.layout,
      paper_bgcolor: "rgba(0,0,0,0)",
      plot_bgcolor: "rgba(0,0,0,0)",
      font: { family: style.getPropertyValue("--sans"), size: 12, color: colour("--ink-2") },
      hoverlabel: { bgcolor: colour("--surface"), bordercolor: colour("--line-strong"), font: { color: colour("--ink") }, align: "left" },
      xaxis: { ...figure.layout.xaxis, ...axis },
      yaxis: { ...figure.layout.yaxis, ...axis },
    };
    layout.shapes = figure.layout.shapes.map((shape) => ({ ...shape, line: { ...shape.line, color: colour("--bad") } }));
    if (chart.clientWidth < 600) {
      // On a phone the lanes' names stand inside the plot, above their bars, where they leave room for time.
      layout.yaxis = { ...layout.yaxis, ticklabelposition: "inside", tickfont: { size: 10 }, automargin: false };
      layout.margin = { ...layout.margin, l: 4, r: 4 };
    }
    return layout;
  };

  const draw = async () => {
    await Plotly.react(chart, figure.data, themed(), options);
    drawn = true;
    chart.setAttribute("aria-busy", "false");
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
